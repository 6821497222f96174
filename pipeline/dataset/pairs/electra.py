"""ELECTRA's rows: one or two segments that follow each other, without labels.

Rules of `ExampleBuilder` in google-research/electra's build_pretraining_dataset.py: sentences are gathered until they have as
many tokens as the row aims at (the length, or with probability .05 a number from 5 to that). With probability .1 all of
it is one segment; else the first segment takes sentences while it stays under half of the row, and by a coin the one that
exceeds it; the rest is the second one. Both are cut at their ends to fit.

Where this differs, on purpose: once the second segment has begun, nothing goes to the first one any more. That program puts a
short sentence that would still fit back into the first segment, so that its segments are no contiguous text. And the target of
the first row of a document is drawn as any other's; there every shard's very first row is full.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from pydantic import Field

from pipeline.core.options import Options

if TYPE_CHECKING:
    from pipeline.core.random_keys import U64
    from pipeline.dataset.pairs.segments import PairConfig, Segments
    from pipeline.dataset.tokenized_documents import TokenizedDocuments

SHORTEST = 5
WHOLE = 1 << 40  # a target that the first segment never reaches


class ElectraOptions(Options):
    """What can be set of the pairing `electra`."""

    single_segment_prob: float = Field(default=0.1, ge=0, le=1)
    """Of the pairing `electra`: how often a row is one segment (ELECTRA: .1)."""


def electra(documents: TokenizedDocuments, config: PairConfig) -> Segments:
    """Rows as ELECTRA reads them. Every sentence is in exactly one row."""
    import numpy as np

    from pipeline.dataset.pairs.segments import NO_LABEL, Segments, sentence_keys

    row_key = sentence_keys(documents, config.seed)
    rows = np.array(_chunks(documents, config, row_key), np.int64).reshape(-1, 3)
    first, middle, end = rows.T
    borders = documents.sentence_offsets
    starts = np.stack([borders[first], borders[middle]], axis=1)
    lengths = np.stack([borders[middle], borders[end]], axis=1) - starts
    one = np.minimum(lengths[:, 0], config.length - 2)
    two = np.minimum(lengths[:, 1], np.maximum(config.length - 3 - one, 0))
    kept = np.stack([one, two], axis=1)
    return Segments.of_pairs(
        document=documents.sentence_document[first],
        offset=documents.sentence_index[first],
        starts=starts,
        lengths=kept,
        pair_label=np.full(len(first), NO_LABEL, np.int8),
        truncated=(lengths - kept).sum(axis=1),
    )


def _chunks(documents: TokenizedDocuments, config: PairConfig, row_key: U64) -> list[tuple[int, int, int]]:
    """Every row as sentence ranges: (first, where the second segment begins, end)."""
    import numpy as np

    from pipeline.core.random_keys import derive, uniform
    from pipeline.dataset.pairs.segments import USE_COIN, USE_SHORT, USE_SINGLE, USE_TARGET

    assert isinstance(config, ElectraOptions)
    short, drawn, single, coin = (uniform(derive(row_key, use)) for use in (USE_SHORT, USE_TARGET, USE_SINGLE, USE_COIN))
    span = config.length - SHORTEST + 1
    aims = np.where(short < config.short_seq_prob, SHORTEST + np.floor(drawn * span).astype(np.int64), config.length)
    halves = np.where(single < config.single_segment_prob, WHOLE, (aims - 3) // 2).tolist()
    goals, over = aims.tolist(), (coin < 0.5).tolist()
    borders, at = documents.sentence_offsets.tolist(), documents.document_offsets.tolist()
    rows = []
    for number in range(len(documents)):
        first, last = at[number], at[number + 1]
        while first < last:
            end = bisect_left(borders, borders[first] + goals[first], first + 1, last)
            half = borders[first] + halves[first]
            middle = max(first + 1, bisect_left(borders, half, first + 1, end + 1) - 1)  # the last border under the half
            if middle < end and borders[middle] < half and over[first]:
                middle += 1
            rows.append((first, min(middle, end), end))
            first = end
    return rows
