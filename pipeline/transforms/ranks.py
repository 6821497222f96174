"""Spreading rows over shards: every row has a rank, a hash, and a shard is a slice of the sorted ranks.

The rows lie in many parts, each sorted by rank. The range of ranks is cut into equal buckets; how many rows each
bucket holds over all parts says exactly where every shard begins, without any rank being moved or held in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.examples.ragged import I64, offsets_of
from pipeline.keys import U64

BUCKET_TOKENS = 1 << 25  # room in a bucket: what a writer holds in memory at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The rows of a shard, as a reader of buckets finds them.

    Attributes:
        buckets: how many buckets the ranks are cut into.
        first: the first bucket read.
        end: the bucket behind the last one read.
        skip: rows in front, in the first bucket, that belong to the slice before.
        rows: rows of the slice.
    """

    buckets: int
    first: int
    end: int
    skip: int
    rows: int


def bucket_count(rows: int, length: int) -> int:
    """Enough buckets that one of them has some `BUCKET_TOKENS` tokens."""
    return max(1, -(-rows * length // BUCKET_TOKENS))


def bucket_borders(sorted_ranks: U64, buckets: int, first: int, end: int) -> I64:
    """Where the buckets first, first + 1, … end begin in a sorted array of ranks: int64 [end - first + 1].

    Bucket b holds the ranks from b / buckets of the range of 64 bits on.
    """
    starts = [-(-(number << 64) // buckets) for number in range(first, end + 1)]
    inside = np.array([start for start in starts if start < 1 << 64], np.uint64)
    borders = np.full(len(starts), len(sorted_ranks), np.int64)
    borders[: len(inside)] = np.searchsorted(sorted_ranks, inside)
    return borders


def plan_slices(bucket_rows: I64, shards: int) -> list[Slice]:
    """Cut N rows into S shards that are equal to within one row: shard s holds ranks [s · N / S, (s + 1) · N / S).

    Args:
        bucket_rows: int64 [buckets], the rows in each bucket over all parts.
        shards: S.
    """
    starts = offsets_of(bucket_rows)
    total, slices = int(starts[-1]), []
    for number in range(shards):
        low, high = number * total // shards, (number + 1) * total // shards
        if low == high:
            slices.append(Slice(buckets=len(bucket_rows), first=0, end=0, skip=0, rows=0))
            continue
        first, end = int(np.searchsorted(starts[1:], low, side="right")), int(np.searchsorted(starts, high, side="left"))
        slices.append(Slice(buckets=len(bucket_rows), first=first, end=end, skip=low - int(starts[first]), rows=high - low))
    return slices
