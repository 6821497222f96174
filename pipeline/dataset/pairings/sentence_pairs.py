"""Pairings of two segments: next sentence, sentence pairs, sentence order, and ELECTRA's.

Next sentence prediction follows `create_instances_from_document` in google-research/bert's
create_pretraining_data.py. Sentences are gathered until they reach the target length; a random
number of them, at least one, is segment A. B is the following text (label 0), or with probability
one half text of another document from a random sentence on (label 1). In the latter case the text
after A returns to the next row. A chunk of one sentence always takes a random B, so slightly more
than half of all labels are 1.

Intended differences: B never comes from the same document (that program gives up after ten tries);
the other document is from the same corpus shard and split. If there is no other document, rows use
the following text, and a chunk of one sentence becomes one segment without a label.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from cloze.core.ragged import I64
from cloze.core.random_keys import U64, fold_in, uniform
from cloze.pipeline.dataset.pairings.continuous import cut_sentences
from cloze.pipeline.dataset.pairings.registry import ElectraOptions, NspOptions, SopOptions
from cloze.pipeline.dataset.pairings.segments import (
    NO_LABEL,
    USE_COIN,
    USE_DOCUMENT,
    USE_MIDDLE,
    USE_SHORT,
    USE_SINGLE,
    USE_START,
    USE_TARGET,
    Segments,
    TokenizedDocuments,
    sentence_keys,
    target_lengths,
)

if TYPE_CHECKING:
    from cloze.pipeline.dataset.config import ExampleConfig

NEXT, RANDOM = 0, 1
UNLIMITED = 1 << 40  # tokens or sentences that no segment reaches


def next_sentence(documents: TokenizedDocuments, config: ExampleConfig) -> Segments:
    """Build rows with next-sentence labels; every sentence is in exactly one row's own text."""
    targets = target_lengths(documents, config, config.max_tokens)
    return _next_sentence_pairs(documents, config, targets, UNLIMITED)


def sentence_pairs(documents: TokenizedDocuments, config: ExampleConfig) -> Segments:
    """Build the rows of `next_sentence` from segments of one sentence each: SENTENCE-PAIR+NSP.

    Liu et al. 2019, section 4.2. Rows are much shorter than the row length, so RoBERTa's batches
    have more rows. `short_seq_prob` has no effect, because a pair is not filled up to a length.
    """
    return _next_sentence_pairs(documents, config, np.full(len(documents), UNLIMITED), 1)


def segment_pairs(documents: TokenizedDocuments, config: ExampleConfig) -> Segments:
    """Build the rows of `next_sentence` without labels.

    Devlin et al. 2019, table 5, "No NSP", which by Liu et al. 2019, section 4.2, kept the two
    segments and removed the loss.
    """
    segments = next_sentence(documents, config)
    return replace(segments, pair_label=np.full(len(segments), NO_LABEL, np.int8))


def _next_sentence_pairs(
    documents: TokenizedDocuments, config: ExampleConfig, targets: I64, max_sentences: int
) -> Segments:
    """Build labelled rows: a segment A, and B from the following text or another document.

    A loop in plain numbers, because each row begins where the previous one ended. All random
    numbers of a row are drawn in advance, from the key of its first sentence.

    Args:
        targets: int64 [D], target tokens of each document's rows.
        max_sentences: maximum sentences of a segment, 1 or UNLIMITED.
    """
    assert isinstance(config, NspOptions)
    documents = cut_sentences(documents, config.max_tokens, 2)
    row_key = sentence_keys(documents, config.seed)
    middle_draw, coin_draw, document_draw, start_draw = (
        uniform(fold_in(row_key, use)).tolist()
        for use in (USE_MIDDLE, USE_COIN, USE_DOCUMENT, USE_START)
    )
    borders = documents.sentence_offsets.tolist()
    document_starts = documents.document_offsets.tolist()
    other_count = len(documents) - 1
    rows = []  # first sentence and end of A, and of B, and the label
    for number, target in enumerate(targets.tolist()):
        first, end = document_starts[number], document_starts[number + 1]
        while first < end:
            last = min(first + 2 * max_sentences, end)
            # At least one sentence, however long; the last one may reach over the target.
            chunk_end = bisect_left(borders, borders[first] + target, first + 1, last)
            followers = chunk_end - first - 1
            a_end = first + 1 + int(middle_draw[first] * followers)
            # A chunk of one sentence leaves nothing for B, so B can only be random.
            if other_count and (not followers or coin_draw[first] < config.random_next_prob):
                other = int(document_draw[first] * other_count)
                # Skips the document itself, so all others are equally likely.
                other += other >= number
                other_first, other_end = document_starts[other], document_starts[other + 1]
                b_first = other_first + int(start_draw[first] * (other_end - other_first))
                # B gets what A leaves of the target.
                target_end = borders[b_first] + target - (borders[a_end] - borders[first])
                b_last = min(b_first + max_sentences, other_end)
                b_end = bisect_left(borders, target_end, b_first + 1, b_last)
                rows.append((first, a_end, b_first, b_end, RANDOM))
                first = a_end  # the text after A returns to the next row
            else:
                rows.append((first, a_end, a_end, chunk_end, NEXT if followers else NO_LABEL))
                first = chunk_end
    table = np.array(rows, np.int64).reshape(-1, 5)
    return Segments.of_pairs(documents, config, table[:, :4], table[:, 4])


def _chunks(documents: TokenizedDocuments, targets: I64) -> tuple[I64, I64]:
    """Cut documents into ranges of sentences that reach a target length or the document's end.

    Args:
        targets: int64 [S], target tokens of a range that begins at each sentence.

    Returns:
        First sentence and end of each range, int64 each. Every sentence is in one range.
    """
    borders, starts = documents.sentence_offsets.tolist(), documents.document_offsets.tolist()
    target_list = targets.tolist()
    firsts = []
    for first, end in zip(starts[:-1], starts[1:], strict=True):
        while first < end:
            firsts.append(first)
            first = bisect_left(borders, borders[first] + target_list[first], first + 1, end)
    first_sentences = np.array(firsts, np.int64)
    return first_sentences, np.append(first_sentences[1:], starts[-1])[: len(firsts)]


# Sentence order prediction: two adjacent segments, in order or swapped (Lan et al. 2020, section
# 3.1).

IN_ORDER, SWAPPED = 0, 1


def sentence_order(documents: TokenizedDocuments, config: ExampleConfig) -> Segments:
    """Build rows with sentence-order labels; every sentence is in exactly one row."""
    assert isinstance(config, SopOptions)
    documents = cut_sentences(documents, config.max_tokens, 2)
    targets = target_lengths(documents, config, config.max_tokens)
    first, end = _chunks(documents, targets[documents.sentence_document])
    key = sentence_keys(documents, config.seed)[first]
    followers = end - first - 1
    middle = first + 1 + (uniform(fold_in(key, USE_MIDDLE)) * followers).astype(np.int64)
    is_swapped = (uniform(fold_in(key, USE_COIN)) < config.swap_prob) & (followers > 0)
    in_order = np.stack([first, middle, middle, end], axis=1)
    sentences = np.where(is_swapped[:, None], in_order[:, [2, 3, 0, 1]], in_order)
    label = np.where(is_swapped, SWAPPED, IN_ORDER)
    return Segments.of_pairs(documents, config, sentences, label, first=first)


# ELECTRA's rows: one or two adjacent segments, without labels.

SHORTEST = 5


def electra(documents: TokenizedDocuments, config: ExampleConfig) -> Segments:
    """Build rows as ELECTRA reads them; every sentence is in exactly one row."""
    assert isinstance(config, ElectraOptions)
    documents = cut_sentences(documents, config.length, 2)
    row_key = sentence_keys(documents, config.seed)
    short, drawn, single, coin = (
        uniform(fold_in(row_key, use)) for use in (USE_SHORT, USE_TARGET, USE_SINGLE, USE_COIN)
    )
    span = config.length - SHORTEST + 1
    targets = np.where(
        short < config.short_seq_prob,
        SHORTEST + np.floor(drawn * span).astype(np.int64),
        config.length,
    )
    halves = np.where(single < config.single_segment_prob, UNLIMITED, (targets - 3) // 2)
    first, end = _chunks(documents, targets)
    borders = documents.sentence_offsets
    half = borders[first] + halves[first]
    # the last border below the half, or with probability one half the one after it
    below_half = np.clip(np.searchsorted(borders, half), first + 1, end + 1) - 1
    middle = np.maximum(below_half, first + 1)
    middle += (middle < end) & (borders[middle] < half) & (coin[first] < 0.5)
    return Segments.of_pairs(
        documents,
        config,
        np.stack([first, middle, middle, end], axis=1),
        np.full(len(first), NO_LABEL),
        truncate=_truncate_ends,
    )


def _truncate_ends(starts: I64, lengths: I64, max_tokens: int, row: U64) -> tuple[I64, I64]:
    """Keep the beginning of both segments; the second gets the room that the first leaves.

    Arguments and result are those of `truncate_pairs`. One segment has room for a token more.
    """
    del row
    first = np.minimum(lengths[:, 0], max_tokens + 1)
    second = np.minimum(lengths[:, 1], np.maximum(max_tokens - first, 0))
    return starts, np.stack([first, second], axis=1)
