"""Stage semdedup: k-means on the sphere (Dhillon and Modha 2001), in whole numbers, so that its clusters are the same everywhere."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.core.unit_vectors import F32, I16, cosines, units

I32 = npt.NDArray[np.int32]

_BLOCK = 1 << 12  # rows at a time
_FINE = 64  # steps of a centre's mean to one of a vector, before it gets its length


def fit(sample: I16, clusters: int, rounds: int) -> I16:
    """int16 [clusters, D]: the centres, beginning at the first rows of the sample.

    Args:
        sample: int16 [n, D], of `units`, in a random order.
        clusters: at most n.
        rounds: at most; it ends when no row changes its cluster.
    """
    centres = sample[:clusters].copy()
    before: I32 | None = None
    for _ in range(rounds):
        nearest = assign(sample, centres)
        if before is not None and np.array_equal(nearest, before):
            break
        before = nearest
        order = np.argsort(nearest, kind="stable")
        taken, begins, counts = np.unique(nearest[order], return_index=True, return_counts=True)
        sums = np.add.reduceat(sample[order].astype(np.int64), begins, axis=0)
        centres[taken] = units(np.rint(sums / counts[:, None] * _FINE))
    return centres


def assign(vectors: I16, centres: I16) -> I32:
    """int32 [n]: the centre of the highest cosine; of equally high ones the first."""
    found = np.zeros(len(vectors), np.int32)
    columns: F32 = centres.astype(np.float32)
    for begin in range(0, len(vectors), _BLOCK):
        rows = slice(begin, begin + _BLOCK)
        found[rows] = cosines(vectors[rows].astype(np.float32), columns).argmax(axis=1)
    return found


def centred(vectors: I16, mean: I16) -> I16:
    """The vectors without what all of them share, of length 1 again."""
    return units(vectors.astype(np.int32) - mean)


def mean_of(vectors: I16) -> I16:
    """int16 [D], rounded."""
    found: I16 = np.rint(vectors.sum(axis=0, dtype=np.int64) / max(1, len(vectors))).astype(np.int16)
    return found
