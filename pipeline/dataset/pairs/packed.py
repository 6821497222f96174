"""Packing: rows of several sequences, `[CLS] one document [SEP] [CLS] the next [SEP]`, with the places where they begin.

For attention that stays within a sequence (Portes et al. 2023, MosaicBERT, section 3.2). Where documents are cut follows
`pipeline.dataset.pairs.runs`; nothing is lost here either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import field_validator

from pipeline.core.errors import did_you_mean
from pipeline.core.options import Options

if TYPE_CHECKING:
    from pipeline.core.ragged import I64
    from pipeline.dataset.pairs.segments import PairConfig, Segments
    from pipeline.dataset.tokenized_documents import TokenizedDocuments

BEST_FIT, IN_ORDER = PACKINGS = ("best-fit", "in-order")


class PackedOptions(Options):
    """What can be set of the pairing `packed`."""

    packing: str = BEST_FIT
    """Of the pairing `packed`: best-fit, which cuts few documents, or in-order, which keeps neighbours together."""

    @field_validator("packing")
    @classmethod
    def _known_packing(cls, packing: str) -> str:
        if packing not in PACKINGS:
            raise ValueError(f"unknown packing; {did_you_mean(packing, PACKINGS)}")
        return packing


def packed(documents: TokenizedDocuments, config: PairConfig) -> Segments:
    """Several sequences a row, each of one document with its own [CLS] and [SEP], and where they begin.

    in-order: like `full`, so documents that follow each other share rows, and are cut where a row ends.
    best-fit: documents are cut into sequences as `document` does, and each, the longest first, goes into the fullest row that
    still takes it (Ding et al. 2024, "Fewer Truncations Improve Language Modeling"). Fewer documents are cut, rows are as full.
    """
    import numpy as np

    from pipeline.core.ragged import Ragged, offsets_of
    from pipeline.dataset.pairs.runs import pieces_across, row_starts
    from pipeline.dataset.pairs.segments import Segments, cut_sentences, target_lengths

    assert isinstance(config, PackedOptions)
    cut = cut_sentences(documents, config.max_single)
    targets = target_lengths(cut, config, config.max_single)
    if config.packing == IN_ORDER:
        return Segments.of_runs(cut, pieces_across(cut, row_starts(cut, targets, 2)), packed=True)
    first = row_starts(cut, targets, None)
    sizes = np.diff(np.append(cut.sentence_offsets[first], len(cut.tokens))) + 2
    row = best_fit(sizes, config.length)
    order = np.argsort(row, kind="stable")  # within a row, sequences in the order of their documents
    return Segments.of_runs(cut, Ragged(first[order], offsets_of(np.bincount(row))), packed=True)


def best_fit(sizes: I64, room: int) -> I64:
    """The bin of each item: int64. The longest first, ties in order, each into the fullest bin that has room; else a new one.

    Args:
        sizes: int64 [n], at most `room` each.
        room: of a bin.
    """
    import numpy as np

    bins = np.zeros(len(sizes), np.int64)
    waiting: list[list[int]] = [[] for _ in range(room + 1)]  # bins by what is left in them
    some, count = 0, 0  # a bit for each such list that is not empty
    plain = sizes.tolist()
    for item in np.argsort(-sizes, kind="stable").tolist():
        size = plain[item]
        fitting = some >> size
        if fitting:
            left = size + (fitting & -fitting).bit_length() - 1
            found = waiting[left].pop()
            if not waiting[left]:
                some ^= 1 << left
        else:
            left, found, count = room, count, count + 1
        bins[item] = found
        waiting[left - size].append(found)
        some |= 1 << (left - size)
    return bins
