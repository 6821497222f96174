"""Metrics of rankings: nDCG and recall at a depth, where tied passages share their places.

A model that gives all passages one score must not be judged by the order in which they happen to stand. So a tie counts as the mean
over all orders of the tied (McSherry and Najork 2008, "Computing Information Retrieval Performance Measures Efficiently in the
Presence of Tied Scores"), as scikit-learn's `ndcg_score` has it, which needs dense tables of all queries and passages.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Vectors = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

BLOCK = 1 << 24  # scores that are in memory at once


def blocks(queries: int, passages: int) -> Iterator[slice]:
    """Queries in blocks whose scores are held at once."""
    size = max(1, BLOCK // max(passages, 1))
    return (slice(begin, min(begin + size, queries)) for begin in range(0, queries, size))


def places(scores: Vectors, relevant: Ints) -> tuple[Ints, Ints]:
    """Where a passage that is relevant to each query stands.

    Args:
        scores: float32 [n, P].
        relevant: int64 [n].

    Returns:
        int64 [n] each: how many passages score higher, and how many score the same, itself included.
    """
    own = scores[np.arange(len(scores)), relevant][:, None]
    return (scores > own).sum(axis=1), (scores == own).sum(axis=1)


def ndcg(above: Ints, tied: Ints, query: Ints, queries: int, depth: int) -> Floats:
    """Normalised discounted cumulative gain at `depth` of each query, gains 0 or 1 (Järvelin and Kekäläinen 2002): float64 [queries].

    Args:
        above, tied: int64 [n], as of `places`, of each pair of a query and a passage that is relevant to it.
        query: int64 [n], the query's number; each query has a pair.
    """
    discounts = np.concatenate([[0.0], np.cumsum(1.0 / np.log2(np.arange(2, depth + 2)))])
    gained = (discounts[np.minimum(above + tied, depth)] - discounts[np.minimum(above, depth)]) / tied
    relevant = np.bincount(query, minlength=queries)
    found: Floats = np.bincount(query, gained, minlength=queries) / discounts[np.minimum(relevant, depth)]
    return found


def recall(above: Ints, tied: Ints, query: Ints, queries: int, depth: int) -> Floats:
    """The share of its relevant passages among each query's first `depth`: float64 [queries]. Args: as of `ndcg`."""
    inside = np.clip((depth - above) / tied, 0.0, 1.0)
    found: Floats = np.bincount(query, inside, minlength=queries) / np.bincount(query, minlength=queries)
    return found
