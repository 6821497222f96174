"""Metrics of ranking from 0 to 1: nDCG and recall at a depth, with ties averaged.

A tie counts as the mean over all orders of the tied passages (McSherry and Najork 2008), so equal
scores gain nothing from file order. scikit-learn's `ndcg_score` does the same, but needs dense
tables of all queries and passages.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cloze.core.ragged import I64
from cloze.model.tasks.metrics import Floats, Vectors

BLOCK = 1 << 24  # scores in memory at once


def query_blocks(queries: int, passages: int) -> Iterator[slice]:
    """Iterate over blocks of queries whose scores fit in memory."""
    size = max(1, BLOCK // max(passages, 1))
    return (slice(begin, min(begin + size, queries)) for begin in range(0, queries, size))


def relevant_ranks(scores: Vectors, relevant: I64) -> tuple[I64, I64]:
    """Return the rank of a relevant passage for each query.

    Args:
        scores: float32 [n, P].
        relevant: int64 [n], passage numbers.

    Returns:
        Number of passages with higher scores, and with equal scores, itself included; int64 [n]
        each.
    """
    relevant_scores = scores[np.arange(len(scores)), relevant][:, None]
    return (scores > relevant_scores).sum(axis=1), (scores == relevant_scores).sum(axis=1)


def ndcg(above: I64, tied: I64, query: I64, queries: int, depth: int) -> Floats:
    """Return nDCG at `depth` of each query, gains 0 or 1 (Järvelin and Kekäläinen 2002).

    Args:
        above, tied: int64 [n], results of `relevant_ranks` for each pair of query and passage.
        query: int64 [n], query number; each query has a pair.

    Returns:
        float64 [queries].
    """
    discounts = np.concatenate([[0.0], np.cumsum(1.0 / np.log2(np.arange(2, depth + 2)))])
    gains = discounts[np.minimum(above + tied, depth)] - discounts[np.minimum(above, depth)]
    ideal = discounts[np.minimum(np.bincount(query, minlength=queries), depth)]
    return np.asarray(np.bincount(query, gains / tied, minlength=queries) / ideal)


def recall(above: I64, tied: I64, query: I64, queries: int, depth: int) -> Floats:
    """Return the share of each query's relevant passages in the first `depth`: float64 [queries].

    Arguments as for `ndcg`.
    """
    retrieved = np.clip((depth - above) / tied, 0.0, 1.0)
    relevant = np.bincount(query, minlength=queries)
    return np.asarray(np.bincount(query, retrieved, minlength=queries) / relevant)
