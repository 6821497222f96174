"""Spreading rows over shards: every row has a rank, a hash, and a shard is a range of the sorted ranks of each length bin.

The rows lie in many parts, each sorted by rank. The range of ranks is cut into equal buckets; how many rows each
bucket holds over all parts says exactly where every shard begins, without any rank being moved or held in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.core.ragged import I64, offsets_of
from pipeline.core.random_keys import U64

BUCKET_TOKENS = 1 << 21  # room in a bucket: what a writer holds in memory at once
MOST_BUCKET_TOKENS = 1 << 26
PART_ROWS = 32  # rows that a bucket should take from each part, so that looking into parts costs less than their rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRange:
    """The rows of a shard in one length bin: consecutive ranks, as a reader of buckets finds them.

    Attributes:
        buckets: how many buckets the ranks are cut into.
        first: the first bucket read.
        end: the bucket behind the last one read.
        skip: rows of the bin in front, in the first bucket, that belong to the range before.
        rows: rows of the range.
    """

    buckets: int
    first: int
    end: int
    skip: int
    rows: int


def bin_borders(length: int, bins: int | Sequence[int]) -> tuple[int, ...]:
    """The most tokens that a row of each length bin has, ascending; the last is `length`.

    Args:
        length: the most tokens of a row.
        bins: how many bins of equal width, or the borders themselves (`length` may be left out).
    """
    if isinstance(bins, int):
        return tuple(sorted({-(-length * number // bins) for number in range(1, bins + 1)}))
    return tuple(sorted({*bins, length}))


def bucket_count(rows: int, length: int, parts: int) -> int:
    """Enough buckets that one of them has some `BUCKET_TOKENS` tokens, or more where the rows come out of thousands of parts."""
    tokens = min(max(BUCKET_TOKENS, PART_ROWS * parts * length), max(BUCKET_TOKENS, MOST_BUCKET_TOKENS))
    return max(1, -(-rows * length // tokens))


def bucket_starts(buckets: int, first: int, end: int) -> U64:
    """The least rank of each of the buckets first, first + 1, … end: uint64; the one behind the last bucket is left out.

    Bucket b holds the ranks from b / buckets of the range of 64 bits on.
    """
    starts = [-(-(number << 64) // buckets) for number in range(first, end + 1)]
    return np.array([start for start in starts if start < 1 << 64], np.uint64)


def bucket_borders(sorted_ranks: U64, buckets: int, first: int, end: int, starts: U64 | None = None) -> I64:
    """Where the buckets first, first + 1, … end begin in a sorted array of ranks: int64 [end - first + 1].

    `starts`: what `bucket_starts` gives, for those who ask often.
    """
    inside = bucket_starts(buckets, first, end) if starts is None else starts
    borders = np.full(end - first + 1, len(sorted_ranks), np.int64)
    borders[: len(inside)] = np.searchsorted(sorted_ranks, inside)
    return borders


def shard_rows(bin_rows: Sequence[int], shards: int) -> I64:
    """How many rows of each bin each shard gets: int64 [bins, shards].

    Rows go to the shards in turn, bin after bin: so shards are equal to within one row, in all and in each bin.
    """
    ends = offsets_of(np.asarray(bin_rows, np.int64))[:, None]
    given: I64 = (ends + shards - 1 - np.arange(shards)) // shards
    return np.diff(given, axis=0)


def plan_ranges(bucket_rows: I64, sizes: I64) -> list[RankRange]:
    """Cut the sorted ranks of a bin into consecutive ranges of the given sizes.

    Args:
        bucket_rows: int64 [buckets], the bin's rows in each bucket over all parts.
        sizes: int64 [shards], which add up to them.
    """
    starts, bounds, buckets = offsets_of(bucket_rows), offsets_of(sizes), len(bucket_rows)
    found = []
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if low == high:
            found.append(RankRange(buckets=buckets, first=0, end=0, skip=0, rows=0))
            continue
        first, end = int(np.searchsorted(starts[1:], low, side="right")), int(np.searchsorted(starts, high, side="left"))
        found.append(RankRange(buckets=buckets, first=first, end=end, skip=low - int(starts[first]), rows=high - low))
    return found
