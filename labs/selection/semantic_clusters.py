"""Stage semdedup: spherical k-means (Dhillon and Modha 2001) and comparison within clusters.

Integer arithmetic makes clusters and cosines the same on every machine and in any order of sums,
which no library's k-means does.
"""

from __future__ import annotations

import numpy as np

from cloze.core.ragged import I64
from cloze.core.random_keys import U64
from cloze.labs.vectors import F32, I16, cosines, quantize

CLUSTER, LARGEST = 2000, 4000  # usual and greatest number of documents of a cluster
BRANCHES = 16  # of a cluster that is divided again
SAMPLE = 256  # documents per centre that k-means reads
ROUNDING = 1e-6  # of a cosine in fp32
_ROWS = 1 << 12  # at a time
_FINE = 64  # resolution of a centre relative to a vector, before normalization


def fit(sample: I16, clusters: int, rounds: int) -> I16:
    """Run k-means; return the centres, int16 [clusters, D].

    Args:
        sample: int16 [n, D], quantized unit vectors in random order; the first rows initialize the
            centres.
        clusters: at most n.
        rounds: maximum number of iterations; it stops when no assignment changes.
    """
    centres, nearest = sample[:clusters].copy(), np.full(len(sample), -1)
    for _ in range(rounds):
        before, nearest = nearest, assign(sample, centres)
        if np.array_equal(nearest, before):
            break
        order = np.argsort(nearest, kind="stable")
        used, begins, counts = np.unique(nearest[order], return_index=True, return_counts=True)
        sums = np.add.reduceat(sample[order].astype(np.int64), begins, axis=0)
        centres[used] = quantize(np.rint(sums / counts[:, None] * _FINE))
    return centres


def assign(vectors: I16, centres: I16) -> I64:
    """Return the centre with the highest cosine, int64 [n]; on ties the first."""
    nearest, columns = np.zeros(len(vectors), np.int64), centres.astype(np.float32)
    for begin in range(0, len(vectors), _ROWS):
        rows = slice(begin, begin + _ROWS)
        nearest[rows] = cosines(vectors[rows].astype(np.float32), columns).argmax(axis=1)
    return nearest


def divide(vectors: I16, ranks: U64, rounds: int) -> list[I64]:
    """Divide rows into clusters of at most `LARGEST`; return the rows of each, ascending.

    Args:
        ranks: uint64 [n], random order of the rows.
    """
    pending, clusters = [np.arange(len(vectors))], list[I64]()
    while pending:
        rows = pending.pop()
        if len(rows) <= LARGEST:
            clusters.append(rows)
            continue
        count = min(BRANCHES, -(-len(rows) // CLUSTER))
        sample = rows[np.argsort(ranks[rows], kind="stable")[: SAMPLE * count]]
        nearest = assign(vectors[rows], fit(vectors[sample], count, rounds))
        if (nearest == nearest[0]).all():  # such as copies of one text: no centres separate them
            nearest = np.arange(len(rows)) // LARGEST
        pending += [rows[nearest == number] for number in np.unique(nearest)]
    return clusters


def centred(vectors: I16, mean: I16) -> I16:
    """Subtract the mean and normalize the vectors again."""
    return quantize(vectors.astype(np.int32) - mean)


def mean_of(vectors: I16) -> I16:
    """Return the rounded mean, int16 [D]."""
    mean: I16 = np.rint(vectors.sum(axis=0, dtype=np.int64) / max(1, len(vectors))).astype(np.int16)
    return mean


def highest_others(questions: I16, question_keys: U64, vectors: I16, keys: U64) -> F32:
    """Return the highest cosine of each question to a row with another key, fp32 [q]; else -1."""
    best = np.full(len(questions), -1.0, np.float32)
    for begin in range(0, len(vectors), _ROWS):
        rows = slice(begin, begin + _ROWS)
        found = cosines(vectors[rows].astype(np.float32), questions.astype(np.float32))
        found[keys[rows, None] == question_keys] = -1.0
        best = np.maximum(best, found.max(axis=0))
    return best


def find_similar(vectors: I16, threshold: float) -> tuple[I64, F32]:
    """Find rows that are too similar to an earlier row that is kept.

    A row is dropped if its cosine to an earlier kept row is at least the threshold.

    Args:
        vectors: int16 [n, D], quantized unit vectors in order of preference.
        threshold: minimum cosine.

    Returns:
        int64 [n]: for dropped rows the kept row with the highest cosine (on ties the first), for
        kept rows themselves. fp32 [n]: highest cosine to an earlier kept row; -1 if there is none.
    """
    values = vectors.astype(np.float32)
    products, count = cosines(values, values), 0
    kept, of = np.zeros(len(values), np.int64), np.arange(len(values))
    best = np.full(len(values), -1.0, np.float32)
    for row in range(len(values)):
        if count:
            top = kept[products[row, kept[:count]].argmax()]
            best[row] = products[row, top]
        if best[row] >= threshold - ROUNDING:
            of[row] = top
        else:
            kept[count] = row
            count += 1
    return of, best
