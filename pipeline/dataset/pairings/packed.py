"""Packing: rows of several sequences, `[CLS] one document [SEP] [CLS] the next [SEP]`.

For attention within a sequence (Portes et al. 2023, MosaicBERT, section 3.2). Documents are cut as
in `cloze.pipeline.dataset.pairings.segments`; no text is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import field_validator

from cloze.core.errors import did_you_mean
from cloze.core.options import Options

if TYPE_CHECKING:
    from cloze.core.ragged import I64
    from cloze.pipeline.dataset.pairings.segments import PairingConfig, Segments, TokenizedDocuments

BEST_FIT, IN_ORDER = PACKINGS = ("best-fit", "in-order")


class PackedOptions(Options):
    """Options of the pairing `packed`."""

    packing: str = BEST_FIT
    """With pairing packed: best-fit (cuts few documents) or in-order (keeps neighbours
    together)."""

    @field_validator("packing")
    @classmethod
    def _known_packing(cls, packing: str) -> str:
        if packing not in PACKINGS:
            raise ValueError(f"unknown packing; {did_you_mean(packing, PACKINGS)}")
        return packing


def packed(documents: TokenizedDocuments, config: PairingConfig) -> Segments:
    """Build rows of several sequences, each from one document with its own [CLS] and [SEP].

    in-order: as `full`, so adjacent documents share rows, and are cut at the end of a row.
    best-fit: documents are cut into sequences as in `document`; each sequence, the longest first,
    goes into the fullest row with enough room (Ding et al. 2024, "Fewer Truncations Improve
    Language Modeling"). Fewer documents are cut, and rows are as full.
    """
    import numpy as np

    from cloze.core.ragged import Ragged, offsets_of
    from cloze.pipeline.dataset.pairings.segments import (
        Segments,
        cut_sentences,
        pieces_across,
        row_starts,
        target_lengths,
    )

    assert isinstance(config, PackedOptions)
    cut = cut_sentences(documents, config.max_single)
    targets = target_lengths(cut, config, config.max_single)
    if config.packing == IN_ORDER:
        return Segments.of_runs(cut, pieces_across(cut, row_starts(cut, targets, 2)), packed=True)
    first = row_starts(cut, targets, None)
    sizes = np.diff(np.append(cut.sentence_offsets[first], len(cut.tokens))) + 2
    row = best_fit(sizes, config.length)
    # within a row, sequences keep the order of their documents
    order = np.argsort(row, kind="stable")
    return Segments.of_runs(cut, Ragged(first[order], offsets_of(np.bincount(row))), packed=True)


def best_fit(sizes: I64, room: int) -> I64:
    """Return the bin of each item by best-fit decreasing: int64; ties in order.

    Args:
        sizes: int64 [n], at most `room` each.
        room: capacity of a bin.
    """
    import numpy as np

    bins = np.zeros(len(sizes), np.int64)
    open_bins: list[list[int]] = [[] for _ in range(room + 1)]  # bins by their free room
    nonempty, count = 0, 0  # `nonempty`: a bit for each list that is not empty
    item_sizes = sizes.tolist()
    for item in np.argsort(-sizes, kind="stable").tolist():
        size = item_sizes[item]
        fitting = nonempty >> size
        if fitting:
            free = size + (fitting & -fitting).bit_length() - 1
            bin_index = open_bins[free].pop()
            if not open_bins[free]:
                nonempty ^= 1 << free
        else:
            free, bin_index, count = room, count, count + 1
        bins[item] = bin_index
        open_bins[free - size].append(bin_index)
        nonempty |= 1 << (free - size)
    return bins
