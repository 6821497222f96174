"""Rows as the loader hands them on: ragged numpy arrays, the rows' values end to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.core.ragged import I64, offsets_of, ranges
from pipeline.core.random_keys import U64


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedRows:
    """B rows with one mask copy each.

    Attributes:
        ids: token ids of the unmasked sequences, [sum of lengths].
        lengths: int64 [B].
        segment_start: int64 [B], where segment B starts (the row's length if there is none).
        pair_labels: int64 [B], -100 where there is none.
        positions: predicted positions inside their rows, [sum of counts].
        replacements: the ids that stand there in the masked sequence, [sum of counts].
        counts: int64 [B], predicted positions a row.
        documents: uint64 [B], and sentences: int64 [B], the row's `source`: what its random numbers follow from.
        boundaries: of packed rows: where in their row sequences begin, [sum of boundary_counts].
        boundary_counts: int64 [B], sequences a row; None where rows are not packed.
    """

    ids: npt.NDArray[Any]
    lengths: I64
    segment_start: I64
    pair_labels: I64
    positions: npt.NDArray[Any]
    replacements: npt.NDArray[Any]
    counts: I64
    documents: U64
    sentences: I64
    boundaries: npt.NDArray[Any]
    boundary_counts: I64 | None = None

    @classmethod
    def none(cls) -> MaskedRows:
        """No rows."""
        nothing = np.zeros(0, np.int64)
        ragged = dict.fromkeys(("ids", "positions", "replacements", "boundaries"), nothing)
        flat = dict.fromkeys(("lengths", "segment_start", "pair_labels", "counts", "sentences"), nothing)
        return cls(**ragged, **flat, documents=nothing.astype(np.uint64))

    @classmethod
    def joined(cls, parts: Sequence[MaskedRows]) -> MaskedRows:
        """The rows of all parts, one behind the other; all are packed, or none."""
        if len(parts) == 1:
            return parts[0]
        names = (one.name for one in fields(cls) if getattr(parts[0], one.name) is not None)
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})

    def with_masks(self, positions: npt.NDArray[Any], replacements: npt.NDArray[Any], counts: I64) -> MaskedRows:
        """The same rows under other masks."""
        return replace(self, positions=positions, replacements=replacements, counts=counts)

    def without_masks(self, bare: npt.NDArray[np.bool_]) -> MaskedRows:
        """The same rows, of which those that `bare`, bool [B], names have nothing masked."""
        kept = ~np.repeat(bare, self.counts)
        return self.with_masks(self.positions[kept], self.replacements[kept], np.where(bare, 0, self.counts))

    def ordered(self, order: I64) -> MaskedRows:
        """The rows that `order`, int64 [B], names, in its order."""
        tokens, masked = _inside(self.lengths, order), _inside(self.counts, order)
        bounds = None if self.boundary_counts is None else _inside(self.boundary_counts, order)
        return MaskedRows(
            ids=self.ids[tokens],
            lengths=self.lengths[order],
            segment_start=self.segment_start[order],
            pair_labels=self.pair_labels[order],
            positions=self.positions[masked],
            replacements=self.replacements[masked],
            counts=self.counts[order],
            documents=self.documents[order],
            sentences=self.sentences[order],
            boundaries=self.boundaries if bounds is None else self.boundaries[bounds],
            boundary_counts=None if self.boundary_counts is None else self.boundary_counts[order],
        )


def _inside(lengths: I64, order: I64) -> I64:
    """Where the values of the lists that `order` names are, when lists of these lengths lie end to end."""
    return ranges(offsets_of(lengths)[:-1][order], lengths[order])
