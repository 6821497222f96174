"""Shards of shuffled rows: a shard is a range of the shuffle keys in each length bin.

The space of shuffle keys (ranks) is cut into equal buckets. A bucket has a destination of the
exchange for each length bin. The number of rows per destination determines exactly where each shard
begins; a shard reads the buckets that it needs, and drops the rows of its neighbours:

    key space   0 |--bucket 0--|--bucket 1--|--bucket 2--|--bucket 3--| 2**64
    a run         [bin 0][bin 1][0][bin 1   ][0   ][bin 1][0   ][bin 1]
    shard 0       `-----------------------'
    shard 1                     `-------------------------------------'
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cloze.core.ragged import I64, offsets_of
from cloze.core.random_keys import U64
from cloze.pipeline.dataset.rows import RowBlock
from cloze.pipeline.runners.exchange import RunRanges

BUCKET_TOKENS = 1 << 21  # size of a bucket, which a writer reads into memory at once
MOST_BUCKET_TOKENS = 1 << 26
SHARD_BUCKETS = 8
# minimum rows per bucket, bin and run, so that seeking costs less than reading rows
PART_ROWS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleRange:
    """The rows of a shard in one length bin: a range of shuffle keys in terms of buckets."""

    first: int  # first bucket to read
    end: int  # bucket after the last one to read
    skip: int  # rows of the bin at the start of the first bucket that belong to the previous range
    rows: int  # number of rows of the range


def bin_borders(length: int, bins: int) -> tuple[int, ...]:
    """Return the maximum row length of each of `bins` equal length bins; the last is `length`."""
    return tuple(sorted({-(-length * number // bins) for number in range(1, bins + 1)}))


def bucket_count(tokens: float, length: int, parts: int, shards: int) -> int:
    """Return the number of buckets for at most about `BUCKET_TOKENS` tokens each.

    A shard has several, since two shards may both read the one where they meet. Buckets are larger
    if the rows are in thousands of runs.

    Args:
        tokens: estimated tokens in all rows.
        length: tokens of a row.
        parts: number of runs times that of length bins.
    """
    most = max(tokens / (PART_ROWS * parts * length), tokens / MOST_BUCKET_TOKENS)
    return max(1, int(min(most, max(tokens / BUCKET_TOKENS, SHARD_BUCKETS * shards))))


def row_places(block: RowBlock, buckets: int, borders: tuple[int, ...]) -> I64:
    """Return the destination of each row, int64 [R]: its bucket, and in it its length bin."""
    bucket = np.repeat(np.arange(buckets), np.diff(bucket_borders(block.rank, buckets)))
    return bucket * len(borders) + np.searchsorted(borders, block.lengths)


def bucket_borders(sorted_ranks: U64, buckets: int) -> I64:
    """Return where each bucket begins in sorted keys, and their number: int64 [buckets + 1].

    Bucket b starts at b / buckets of the 64-bit range.
    """
    # Python integers: 1 << 64 is beyond uint64, and float64 would round the borders.
    starts = np.array([-(-(number << 64) // buckets) for number in range(buckets)], np.uint64)
    return np.append(np.searchsorted(sorted_ranks, starts), len(sorted_ranks))


def shard_rows(bin_rows: Sequence[int], shards: int) -> I64:
    """Return the number of rows of each bin in each shard: int64 [bins, shards].

    Rows go to the shards in turn, bin after bin. So shards have equal sizes to within one row, in
    total and in each bin.
    """
    ends = offsets_of(np.asarray(bin_rows, np.int64))[:, None]
    cumulative: I64 = (ends + shards - 1 - np.arange(shards)) // shards
    return np.diff(cumulative, axis=0)


def plan_ranges(bucket_rows: I64, sizes: I64, bucket: int = 0) -> list[ShuffleRange]:
    """Cut the sorted shuffle keys of a bin into consecutive ranges of the given sizes.

    Args:
        bucket_rows: int64 [buckets], rows of the bin in each bucket over all files.
        sizes: int64 [shards], with the same sum.
        bucket: number of the first bucket.
    """
    starts, bounds = offsets_of(bucket_rows), offsets_of(sizes)
    ranges = []
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if low == high:
            ranges.append(ShuffleRange(first=0, end=0, skip=0, rows=0))
            continue
        first = int(np.searchsorted(starts[1:], low, side="right"))
        end = int(np.searchsorted(starts, high, side="left"))
        skip = low - int(starts[first])
        span = {"first": bucket + first, "end": bucket + end}
        ranges.append(ShuffleRange(**span, skip=skip, rows=high - low))
    return ranges


def merge_range(
    runs: RunRanges, key_range: ShuffleRange, bin_number: int, bins: int, batch_rows: int
) -> Iterator[RowBlock]:
    """Yield the rows of a range in key order, in blocks of `batch_rows`; the last may be smaller.

    Args:
        runs: the destinations of at least the buckets of the range.
        key_range: range, counted over the rows in the bin `bin_number` only.
    """
    rest: RowBlock | None = None
    skip, remaining = key_range.skip, key_range.rows
    for bucket in range(key_range.first, key_range.end) if remaining else ():
        batches = list(runs.batches(bucket * bins + bin_number))
        if not batches:
            continue
        block = RowBlock.from_arrow(pa.concat_batches(batches))
        runs.release()
        # The rows of a neighbour are sorted with ours: only ranks say which are whose.
        order = np.argsort(block.rank, kind="stable")[skip : skip + remaining]
        skip, remaining, start = 0, remaining - len(order), 0
        while start < len(order):
            room = batch_rows - (0 if rest is None else len(rest))
            rows = block.take(order[start : start + room])
            start += len(rows)
            rest = rows if rest is None else RowBlock.concatenate([rest, rows])
            if len(rest) == batch_rows:
                yield rest
                rest = None
    if rest is not None:
        yield rest
