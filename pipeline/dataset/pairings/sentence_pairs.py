"""Pairings of two segments: next sentence, sentence order, and ELECTRA's.

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

from pydantic import Field

from cloze.core.options import Options

if TYPE_CHECKING:
    from cloze.core import random_keys
    from cloze.core.ragged import I64
    from cloze.core.random_keys import U64
    from cloze.pipeline.dataset.pairings.segments import PairingConfig, Segments, TokenizedDocuments


NEXT, RANDOM = 0, 1


class NspOptions(Options):
    """Options of the pairings `nsp` and `segment-pair`."""

    random_next_prob: float = Field(default=0.5, ge=0, le=1)
    """With pairings nsp and segment-pair: share of rows whose second segment is random text (BERT:
    0.5)."""


def next_sentence(documents: TokenizedDocuments, config: PairingConfig) -> Segments:
    """Build rows with next-sentence labels; every sentence is in exactly one row's own text."""
    import numpy as np

    from cloze.pipeline.dataset.pairings.segments import Segments, sentence_keys, truncate_pairs

    row_key = sentence_keys(documents, config.seed)
    rows = np.array(_chunks(documents, config, row_key), np.int64).reshape(-1, 5)
    a_first, a_last, b_first, b_last, label = rows.T
    borders = documents.sentence_offsets
    starts = np.stack([borders[a_first], borders[b_first]], axis=1)
    lengths = np.stack([borders[a_last], borders[b_last]], axis=1) - starts
    cut_starts, cut_lengths = truncate_pairs(starts, lengths, config.max_tokens, row_key[a_first])
    is_random = label == RANDOM
    is_own = np.stack([np.ones_like(is_random), ~is_random], axis=1)
    return Segments.of_pairs(
        document=documents.sentence_document[a_first],
        offset=documents.sentence_index[a_first],
        starts=cut_starts,
        lengths=cut_lengths,
        pair_label=label.astype(np.int8),
        truncated=((lengths - cut_lengths) * is_own).sum(axis=1),
        foreign=np.where(is_random, cut_lengths[:, 1], 0),
    )


def segment_pairs(documents: TokenizedDocuments, config: PairingConfig) -> Segments:
    """Build the rows of `next_sentence` without labels.

    Devlin et al. 2019, table 5, "No NSP", which by Liu et al. 2019, section 4.2, kept the two
    segments and removed the loss.
    """
    import numpy as np

    from cloze.pipeline.dataset.pairings.segments import NO_LABEL

    segments = next_sentence(documents, config)
    return replace(segments, pair_label=np.full(len(segments), NO_LABEL, np.int8))


def _chunks(
    documents: TokenizedDocuments, config: PairingConfig, row_key: random_keys.U64
) -> list[tuple[int, int, int, int, int]]:
    """Return every row as sentence ranges and label: (A first, A end, B first, B end, label).

    The only loop over rows, in plain numbers, because each row begins where the previous one ended.
    All random numbers of a row are drawn in advance, from the key of its first sentence.
    """
    from cloze.core.random_keys import fold_in, uniform
    from cloze.pipeline.dataset.pairings.segments import (
        NO_LABEL,
        USE_COIN,
        USE_DOCUMENT,
        USE_MIDDLE,
        USE_START,
        target_lengths,
    )

    assert isinstance(config, NspOptions)
    middle_draw, coin_draw, document_draw, start_draw = (
        uniform(fold_in(row_key, use)).tolist()
        for use in (USE_MIDDLE, USE_COIN, USE_DOCUMENT, USE_START)
    )
    borders = documents.sentence_offsets.tolist()
    document_starts = documents.document_offsets.tolist()
    targets = target_lengths(documents, config, config.max_tokens).tolist()
    other_count = len(documents) - 1
    rows = []
    for number, target in enumerate(targets):
        first, end = document_starts[number], document_starts[number + 1]
        while first < end:
            chunk_end = bisect_left(borders, borders[first] + target, first + 1, end)
            followers = chunk_end - first - 1
            a_end = first + 1 + int(middle_draw[first] * followers)
            if other_count and (not followers or coin_draw[first] < config.random_next_prob):
                other = int(document_draw[first] * other_count)
                other += other >= number
                other_first, other_end = document_starts[other], document_starts[other + 1]
                b_first = other_first + int(start_draw[first] * (other_end - other_first))
                target_end = borders[b_first] + target - (borders[a_end] - borders[first])
                b_end = bisect_left(borders, target_end, b_first + 1, other_end)
                rows.append((first, a_end, b_first, b_end, RANDOM))
                first = a_end  # the text after A returns to the next row
            else:
                rows.append((first, a_end, a_end, chunk_end, NEXT if followers else NO_LABEL))
                first = chunk_end
    return rows


# Sentence order prediction: two adjacent segments, in order or swapped (Lan et al. 2020, section
# 3.1).

IN_ORDER, SWAPPED = 0, 1


class SopOptions(Options):
    """Options of the pairing `sop`."""

    swap_prob: float = Field(default=0.5, ge=0, le=1)
    """With pairing sop: share of rows whose segments are swapped (ALBERT: 0.5)."""


def sentence_order(documents: TokenizedDocuments, config: PairingConfig) -> Segments:
    """Build rows with sentence-order labels; every sentence is in exactly one row."""
    import numpy as np

    from cloze.core.random_keys import fold_in, uniform
    from cloze.pipeline.dataset.pairings.segments import (
        USE_COIN,
        USE_MIDDLE,
        Segments,
        sentence_keys,
        target_lengths,
        truncate_pairs,
    )

    assert isinstance(config, SopOptions)
    row_key = sentence_keys(documents, config.seed)
    first, end = _pair_chunks(documents, target_lengths(documents, config, config.max_tokens))
    key = row_key[first]
    followers = end - first - 1
    middle = first + 1 + (uniform(fold_in(key, USE_MIDDLE)) * followers).astype(np.int64)
    is_swapped = (uniform(fold_in(key, USE_COIN)) < config.swap_prob) & (followers > 0)
    borders = documents.sentence_offsets
    starts = np.stack([borders[first], borders[middle]], axis=1)
    lengths = np.stack([borders[middle], borders[end]], axis=1) - starts
    order = np.where(is_swapped[:, None], [[1, 0]], [[0, 1]])
    starts, lengths = (
        np.take_along_axis(starts, order, axis=1),
        np.take_along_axis(lengths, order, axis=1),
    )
    cut_starts, cut_lengths = truncate_pairs(starts, lengths, config.max_tokens, key)
    return Segments.of_pairs(
        document=documents.sentence_document[first],
        offset=documents.sentence_index[first],
        starts=cut_starts,
        lengths=cut_lengths,
        pair_label=np.where(is_swapped, SWAPPED, IN_ORDER).astype(np.int8),
        truncated=(lengths - cut_lengths).sum(axis=1),
    )


def _pair_chunks(documents: TokenizedDocuments, targets: I64) -> tuple[I64, I64]:
    """Return sentence ranges that reach the target length of their document."""
    import numpy as np

    borders, document_starts = (
        documents.sentence_offsets.tolist(),
        documents.document_offsets.tolist(),
    )
    firsts = []
    for number, target in enumerate(targets.tolist()):
        first, end = document_starts[number], document_starts[number + 1]
        while first < end:
            firsts.append(first)
            first = bisect_left(borders, borders[first] + target, first + 1, end)
    starts = np.array(firsts, np.int64)
    return starts, np.append(starts[1:], len(documents.sentence_index))[: len(starts)]


# ELECTRA's rows: one or two adjacent segments, without labels.

SHORTEST = 5
WHOLE = 1 << 40  # a target that the first segment never reaches


class ElectraOptions(Options):
    """Options of the pairing `electra`."""

    single_segment_prob: float = Field(default=0.1, ge=0, le=1)
    """With pairing electra: share of rows with one segment (ELECTRA: 0.1)."""


def electra(documents: TokenizedDocuments, config: PairingConfig) -> Segments:
    """Build rows as ELECTRA reads them; every sentence is in exactly one row."""
    import numpy as np

    from cloze.pipeline.dataset.pairings.segments import NO_LABEL, Segments, sentence_keys

    row_key = sentence_keys(documents, config.seed)
    rows = np.array(_electra_chunks(documents, config, row_key), np.int64).reshape(-1, 3)
    first, middle, end = rows.T
    borders = documents.sentence_offsets
    starts = np.stack([borders[first], borders[middle]], axis=1)
    lengths = np.stack([borders[middle], borders[end]], axis=1) - starts
    first_lengths = np.minimum(lengths[:, 0], config.length - 2)
    second_lengths = np.minimum(lengths[:, 1], np.maximum(config.length - 3 - first_lengths, 0))
    cut_lengths = np.stack([first_lengths, second_lengths], axis=1)
    return Segments.of_pairs(
        document=documents.sentence_document[first],
        offset=documents.sentence_index[first],
        starts=starts,
        lengths=cut_lengths,
        pair_label=np.full(len(first), NO_LABEL, np.int8),
        truncated=(lengths - cut_lengths).sum(axis=1),
    )


def _electra_chunks(
    documents: TokenizedDocuments, config: PairingConfig, row_key: U64
) -> list[tuple[int, int, int]]:
    """Return every row as sentence ranges: (first, start of the second segment, end)."""
    import numpy as np

    from cloze.core.random_keys import fold_in, uniform
    from cloze.pipeline.dataset.pairings.segments import USE_COIN, USE_SHORT, USE_SINGLE, USE_TARGET

    assert isinstance(config, ElectraOptions)
    short, drawn, single, coin_draw = (
        uniform(fold_in(row_key, use)) for use in (USE_SHORT, USE_TARGET, USE_SINGLE, USE_COIN)
    )
    span = config.length - SHORTEST + 1
    row_targets = np.where(
        short < config.short_seq_prob,
        SHORTEST + np.floor(drawn * span).astype(np.int64),
        config.length,
    )
    halves = np.where(single < config.single_segment_prob, WHOLE, (row_targets - 3) // 2).tolist()
    target_list, rounds_up = row_targets.tolist(), (coin_draw < 0.5).tolist()
    borders, document_starts = (
        documents.sentence_offsets.tolist(),
        documents.document_offsets.tolist(),
    )
    rows = []
    for number in range(len(documents)):
        first, last = document_starts[number], document_starts[number + 1]
        while first < last:
            end = bisect_left(borders, borders[first] + target_list[first], first + 1, last)
            half = borders[first] + halves[first]
            # the last border below the half
            middle = max(first + 1, bisect_left(borders, half, first + 1, end + 1) - 1)
            if middle < end and borders[middle] < half and rounds_up[first]:
                middle += 1
            rows.append((first, min(middle, end), end))
            first = end
    return rows
