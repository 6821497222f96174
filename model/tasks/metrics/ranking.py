"""Ranking metrics: nDCG and recall at a depth, with ties averaged.

A tie counts as the mean over all orders of the tied passages (McSherry and Najork 2008, "Computing
Information Retrieval Performance Measures Efficiently in the Presence of Tied Scores"). Equal
scores for all passages therefore gain nothing from file order. scikit-learn's `ndcg_score` does the
same, but needs dense tables of all queries and passages.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Vectors = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

BLOCK = 1 << 24  # scores in memory at once


def blocks(queries: int, passages: int) -> Iterator[slice]:
    """Iterate over blocks of queries whose scores fit in memory."""
    size = max(1, BLOCK // max(passages, 1))
    return (slice(begin, min(begin + size, queries)) for begin in range(0, queries, size))


def relevant_ranks(scores: Vectors, relevant: Ints) -> tuple[Ints, Ints]:
    """Return the rank of a relevant passage for each query.

    Args:
        scores: float32 [n, P].
        relevant: int64 [n], passage numbers.

    Returns:
        Number of passages with higher scores, and with equal scores, itself included; int64 [n]
        each.
    """
    own = scores[np.arange(len(scores)), relevant][:, None]
    return (scores > own).sum(axis=1), (scores == own).sum(axis=1)


def ndcg(above: Ints, tied: Ints, query: Ints, queries: int, depth: int) -> Floats:
    """Return nDCG at `depth` of each query, gains 0 or 1 (Järvelin and Kekäläinen 2002).

    Args:
        above, tied: int64 [n], results of `relevant_ranks` for each pair of query and passage.
        query: int64 [n], query number; each query has a pair.

    Returns:
        float64 [queries].
    """
    discounts = np.concatenate([[0.0], np.cumsum(1.0 / np.log2(np.arange(2, depth + 2)))])
    gained = (
        discounts[np.minimum(above + tied, depth)] - discounts[np.minimum(above, depth)]
    ) / tied
    relevant = np.bincount(query, minlength=queries)
    found: Floats = (
        np.bincount(query, gained, minlength=queries) / discounts[np.minimum(relevant, depth)]
    )
    return found


def recall(above: Ints, tied: Ints, query: Ints, queries: int, depth: int) -> Floats:
    """Return the share of each query's relevant passages in the first `depth`: float64 [queries].

    Arguments as for `ndcg`.
    """
    inside = np.clip((depth - above) / tied, 0.0, 1.0)
    found: Floats = np.bincount(query, inside, minlength=queries) / np.bincount(
        query, minlength=queries
    )
    return found
