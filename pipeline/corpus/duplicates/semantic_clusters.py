"""Stage semdedup: spherical k-means (Dhillon and Modha 2001) and comparison within clusters.

Integer arithmetic makes the clusters identical on all machines.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cloze.core.arrow import F32, I16, cosines, quantize

I32 = npt.NDArray[np.int32]

_BLOCK = 1 << 12  # rows at a time
_FINE = 64  # resolution of a centre relative to a vector, before normalization


def fit(sample: I16, clusters: int, rounds: int) -> I16:
    """Run k-means; return the centres, int16 [clusters, D].

    Args:
        sample: int16 [n, D], quantized unit vectors in random order; the first rows initialize the
            centres.
        clusters: at most n.
        rounds: maximum number of iterations; it stops when no assignment changes.
    """
    centres = sample[:clusters].copy()
    before: I32 | None = None
    for _ in range(rounds):
        nearest = assign(sample, centres)
        if before is not None and np.array_equal(nearest, before):
            break
        before = nearest
        order = np.argsort(nearest, kind="stable")
        used, begins, counts = np.unique(nearest[order], return_index=True, return_counts=True)
        sums = np.add.reduceat(sample[order].astype(np.int64), begins, axis=0)
        centres[used] = quantize(np.rint(sums / counts[:, None] * _FINE))
    return centres


def assign(vectors: I16, centres: I16) -> I32:
    """Return the centre with the highest cosine, int32 [n]; on ties the first."""
    nearest = np.zeros(len(vectors), np.int32)
    columns: F32 = centres.astype(np.float32)
    for begin in range(0, len(vectors), _BLOCK):
        rows = slice(begin, begin + _BLOCK)
        nearest[rows] = cosines(vectors[rows].astype(np.float32), columns).argmax(axis=1)
    return nearest


def centred(vectors: I16, mean: I16) -> I16:
    """Subtract the mean and normalize the vectors again."""
    return quantize(vectors.astype(np.int32) - mean)


def mean_of(vectors: I16) -> I16:
    """Return the rounded mean, int16 [D]."""
    mean: I16 = np.rint(vectors.sum(axis=0, dtype=np.int64) / max(1, len(vectors))).astype(np.int16)
    return mean


# Comparison of documents within a cluster.

_COMPARED = 1 << 10
_ROUNDING = 1e-6  # of fp32


def find_similar(vectors: I16, threshold: float) -> tuple[I32, F32]:
    """Find rows that are too similar to an earlier row that is kept.

    A row is dropped if its cosine to an earlier kept row is at least the threshold.

    Args:
        vectors: int16 [n, D], quantized unit vectors in order of preference.
        threshold: minimum cosine.

    Returns:
        int32 [n]: for dropped rows the kept row with the highest cosine (on ties the first), for
        kept rows themselves. fp32 [n]: highest cosine to an earlier kept row; -1 if there is none.
    """
    count = len(vectors)
    of, best = np.arange(count, dtype=np.int32), np.full(count, -1.0, np.float32)
    retained_rows = np.zeros(0, np.int32)
    for begin in range(0, count, _COMPARED):
        rows = vectors[begin : begin + _COMPARED].astype(np.float32)
        nearest = np.arange(begin, begin + len(rows), dtype=np.int32)
        for first in range(0, len(retained_rows), _COMPARED):
            compared = retained_rows[first : first + _COMPARED]
            products = cosines(rows, vectors[compared].astype(np.float32))
            column, value = products.argmax(axis=1), products.max(axis=1)
            better = value > best[begin : begin + len(rows)]
            nearest[better] = compared[column[better]]
            best[begin : begin + len(rows)][better] = value[better]
        inside = cosines(rows, rows)
        retained: list[int] = []
        for row in range(len(rows)):
            if retained:
                row_products = inside[row, retained]
                highest = int(row_products.argmax())
                if row_products[highest] > best[begin + row]:
                    best[begin + row], nearest[row] = (
                        row_products[highest],
                        begin + retained[highest],
                    )
            if best[begin + row] >= threshold - _ROUNDING:
                of[begin + row] = nearest[row]
            else:
                retained.append(row)
        retained_rows = np.concatenate(
            [retained_rows, begin + np.array(retained, np.int32)]
        ).astype(np.int32)
    return of, best


def counted(values: npt.NDArray[np.float32], limits: tuple[float, ...]) -> list[int]:
    """Return a histogram of the values; the last count is of values not below any limit."""
    bins = np.searchsorted(np.array(limits, np.float32), values, side="right")
    return [int(count) for count in np.bincount(bins, minlength=len(limits) + 1)]
