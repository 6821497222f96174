"""Stage semdedup: within a cluster, which documents are too like one that stays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.core.unit_vectors import F32, I16, cosines

I32 = npt.NDArray[np.int32]

_BLOCK = 1 << 10
_ROUNDING = 1e-6  # of fp32


def find_similar(vectors: I16, threshold: float) -> tuple[I32, F32]:
    """For each row an earlier one that stays and is like it, itself where it stays; and its highest cosine to an earlier one that stays.

    A row goes if its cosine to an earlier row that stays is at least the threshold: nothing goes for being like something that went.

    Args:
        vectors: int16 [n, D], of `units`, those that stay before those that go for them.
        threshold: of the cosine.

    Returns:
        int32 [n], the earlier row of the highest cosine, of equally high ones the first; fp32 [n], -1 where nothing stays before it.
    """
    count = len(vectors)
    of, best = np.arange(count, dtype=np.int32), np.full(count, -1.0, np.float32)
    stay = np.zeros(0, np.int32)
    for begin in range(0, count, _BLOCK):
        rows = vectors[begin : begin + _BLOCK].astype(np.float32)
        nearest = np.arange(begin, begin + len(rows), dtype=np.int32)
        for first in range(0, len(stay), _BLOCK):
            chosen = stay[first : first + _BLOCK]
            found = cosines(rows, vectors[chosen].astype(np.float32))
            at, value = found.argmax(axis=1), found.max(axis=1)
            better = value > best[begin : begin + len(rows)]
            nearest[better] = chosen[at[better]]
            best[begin : begin + len(rows)][better] = value[better]
        inside = cosines(rows, rows)
        kept: list[int] = []
        for row in range(len(rows)):
            if kept:
                own = inside[row, kept]
                at_most = int(own.argmax())
                if own[at_most] > best[begin + row]:
                    best[begin + row], nearest[row] = own[at_most], begin + kept[at_most]
            if best[begin + row] >= threshold - _ROUNDING:
                of[begin + row] = nearest[row]
            else:
                kept.append(row)
        stay = np.concatenate([stay, begin + np.array(kept, np.int32)]).astype(np.int32)
    return of, best


def counted(values: npt.NDArray[np.float32], limits: tuple[float, ...]) -> list[int]:
    """How many are below each limit and not below the one before; the last: not below any."""
    places = np.searchsorted(np.array(limits, np.float32), values, side="right")
    return [int(count) for count in np.bincount(places, minlength=len(limits) + 1)]
