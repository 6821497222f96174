"""Sentence order prediction: two segments that follow each other, in order or swapped (Lan et al. 2020, section 3.1).

Chunks, and where one is cut into A and B, are as in next sentence prediction (google-research/albert,
create_pretraining_data.py, is google-research/bert's with other negatives). The label is pure: both segments always follow each
other in one document, 0 in order, 1 swapped. That program gives a chunk of one sentence a random B and label 1, which is an NSP
negative among SOP labels (albert#234); here such a chunk is a row of one segment without a label.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from pydantic import Field

from pipeline.core.options import Options

if TYPE_CHECKING:
    from pipeline.core.ragged import I64
    from pipeline.dataset.pairs.segments import PairConfig, Segments
    from pipeline.dataset.tokenized_documents import TokenizedDocuments

IN_ORDER, SWAPPED = 0, 1


class SopOptions(Options):
    """What can be set of the pairing `sop`."""

    swap_prob: float = Field(default=0.5, ge=0, le=1)
    """Of the pairing `sop`: how often the segments are swapped (ALBERT: .5)."""


def sentence_order(documents: TokenizedDocuments, config: PairConfig) -> Segments:
    """Rows with sentence-order labels. Every sentence is in exactly one row."""
    import numpy as np

    from pipeline.core.random_keys import derive, uniform
    from pipeline.dataset.pairs.segments import USE_COIN, USE_MIDDLE, Segments, sentence_keys, target_lengths, truncate_pairs

    assert isinstance(config, SopOptions)
    row_key = sentence_keys(documents, config.seed)
    first, end = _chunks(documents, target_lengths(documents, config, config.max_tokens))
    key = row_key[first]
    followers = end - first - 1
    middle = first + 1 + (uniform(derive(key, USE_MIDDLE)) * followers).astype(np.int64)
    swapped = (uniform(derive(key, USE_COIN)) < config.swap_prob) & (followers > 0)
    borders = documents.sentence_offsets
    starts = np.stack([borders[first], borders[middle]], axis=1)
    lengths = np.stack([borders[middle], borders[end]], axis=1) - starts
    order = np.where(swapped[:, None], [[1, 0]], [[0, 1]])
    starts, lengths = np.take_along_axis(starts, order, axis=1), np.take_along_axis(lengths, order, axis=1)
    cut_starts, cut_lengths = truncate_pairs(starts, lengths, config.max_tokens, key)
    return Segments.of_pairs(
        document=documents.sentence_document[first],
        offset=documents.sentence_index[first],
        starts=cut_starts,
        lengths=cut_lengths,
        pair_label=np.where(swapped, SWAPPED, IN_ORDER).astype(np.int8),
        truncated=(lengths - cut_lengths).sum(axis=1),
    )


def _chunks(documents: TokenizedDocuments, targets: I64) -> tuple[I64, I64]:
    """Sentence ranges: each gathers sentences until it has as many tokens as its document aims at."""
    import numpy as np

    borders, at = documents.sentence_offsets.tolist(), documents.document_offsets.tolist()
    firsts = []
    for number, target in enumerate(targets.tolist()):
        first, end = at[number], at[number + 1]
        while first < end:
            firsts.append(first)
            first = bisect_left(borders, borders[first] + target, first + 1, end)
    starts = np.array(firsts, np.int64)
    return starts, np.append(starts[1:], len(documents.sentence_index))[: len(starts)]
