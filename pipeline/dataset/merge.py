"""External merge of shuffled rows: a shard is a range of the shuffle keys in each length bin.

The rows are in many intermediate files, each sorted by shuffle key (rank). The key space is cut
into equal buckets. The number of rows per bucket over all files determines exactly where each shard
begins, without moving the keys or holding them in memory.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cloze.core.arrow import arrow_errors_as_data_errors, drop_page_cache, file_buffer, local_copy
from cloze.core.ragged import I64, offsets_of
from cloze.core.random_keys import U64
from cloze.pipeline.dataset.rows import RowBlock, part_path

BUCKET_TOKENS = 1 << 21  # size of a bucket, which a writer reads into memory at once
MOST_BUCKET_TOKENS = 1 << 26
# minimum rows per bucket and file, so that seeking costs less than reading rows
PART_ROWS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleRange:
    """The rows of a shard in one length bin: a range of shuffle keys in terms of buckets.

    Attributes:
        buckets: number of buckets of the key space.
        first: first bucket to read.
        end: bucket after the last one to read.
        skip: rows of the bin at the start of the first bucket that belong to the previous range.
        rows: number of rows of the range.
    """

    buckets: int
    first: int
    end: int
    skip: int
    rows: int


def bin_borders(length: int, bins: int) -> tuple[int, ...]:
    """Return the maximum row length of each of `bins` equal length bins; the last is `length`."""
    return tuple(sorted({-(-length * number // bins) for number in range(1, bins + 1)}))


def bucket_count(rows: int, length: int, parts: int) -> int:
    """Return the number of buckets for about `BUCKET_TOKENS` tokens each.

    Buckets are larger if the rows are in thousands of intermediate files.
    """
    tokens = min(
        max(BUCKET_TOKENS, PART_ROWS * parts * length), max(BUCKET_TOKENS, MOST_BUCKET_TOKENS)
    )
    return max(1, -(-rows * length // tokens))


def bucket_starts(buckets: int, first: int, end: int) -> U64:
    """Return the least key of the buckets first … end, uint64; the end of the key space is omitted.

    Bucket b starts at b / buckets of the 64-bit range.
    """
    starts = [-(-(number << 64) // buckets) for number in range(first, end + 1)]
    return np.array([start for start in starts if start < 1 << 64], np.uint64)


def bucket_borders(
    sorted_ranks: U64, buckets: int, first: int, end: int, starts: U64 | None = None
) -> I64:
    """Return where the buckets first … end begin in sorted keys: int64 [end - first + 1].

    `starts`: result of `bucket_starts`, for repeated calls.
    """
    least_keys = bucket_starts(buckets, first, end) if starts is None else starts
    borders = np.full(end - first + 1, len(sorted_ranks), np.int64)
    borders[: len(least_keys)] = np.searchsorted(sorted_ranks, least_keys)
    return borders


def shard_rows(bin_rows: Sequence[int], shards: int) -> I64:
    """Return the number of rows of each bin in each shard: int64 [bins, shards].

    Rows go to the shards in turn, bin after bin. So shards have equal sizes to within one row, in
    total and in each bin.
    """
    ends = offsets_of(np.asarray(bin_rows, np.int64))[:, None]
    cumulative: I64 = (ends + shards - 1 - np.arange(shards)) // shards
    return np.diff(cumulative, axis=0)


def plan_ranges(bucket_rows: I64, sizes: I64) -> list[ShuffleRange]:
    """Cut the sorted shuffle keys of a bin into consecutive ranges of the given sizes.

    Args:
        bucket_rows: int64 [buckets], rows of the bin in each bucket over all files.
        sizes: int64 [shards], with the same sum.
    """
    starts, bounds, buckets = offsets_of(bucket_rows), offsets_of(sizes), len(bucket_rows)
    ranges = []
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if low == high:
            ranges.append(ShuffleRange(buckets=buckets, first=0, end=0, skip=0, rows=0))
            continue
        first, end = (
            int(np.searchsorted(starts[1:], low, side="right")),
            int(np.searchsorted(starts, high, side="left")),
        )
        ranges.append(
            ShuffleRange(
                buckets=buckets,
                first=first,
                end=end,
                skip=low - int(starts[first]),
                rows=high - low,
            )
        )
    return ranges


# Second step of the stage: merge one key range of all intermediate files.

FILES_PER_PASS = 64  # files read between two releases of their pages


@dataclass(frozen=True, slots=True)
class RowFile:
    """A memory-mapped intermediate file. `batch` is None if it has no rows."""

    buffer: pa.Buffer
    batch: pa.RecordBatch | None
    ranks: U64

    @classmethod
    def open(cls, path: str, stamp: str) -> RowFile:
        buffer = file_buffer(local_copy(path, stamp))
        with arrow_errors_as_data_errors(
            path, "remove the unfinished directory and run the stage again"
        ):
            reader = pa.ipc.open_file(pa.BufferReader(buffer))
            batch = reader.get_batch(0) if reader.num_record_batches else None
        drop_page_cache(buffer)
        return cls(
            buffer, batch, np.zeros(0, np.uint64) if batch is None else batch["rank"].to_numpy()
        )

    @property
    def lengths(self) -> I64:
        """Tokens of each row: int64 [R]."""
        if self.batch is None:
            return np.zeros(0, np.int64)
        lengths: I64 = np.diff(self.batch["input_ids"].offsets.to_numpy()).astype(np.int64)
        return lengths

    def borders(self, buckets: int, first: int, end: int, starts: U64 | None = None) -> I64:
        """Return where the buckets first … end begin in the rows: int64 [end - first + 1]."""
        borders = bucket_borders(self.ranks, buckets, first, end, starts)
        drop_page_cache(self.buffer)
        return borders


@functools.lru_cache(maxsize=2)
def open_intermediate_files(
    directory: str, split: str, parts: int, stamp: str
) -> tuple[RowFile, ...]:
    """Map all intermediate files of a split, once per process.

    `stamp`: fingerprint of the artifact, because a directory may be reused.
    """
    return tuple(
        RowFile.open(part_path(directory, split, number), stamp) for number in range(parts)
    )


def count_buckets(parts: tuple[RowFile, ...], borders: tuple[int, ...], buckets: int) -> I64:
    """Count the rows of each length bin in each bucket, over all files: int64 [bins, buckets]."""
    counts = np.zeros((len(borders), buckets), np.int64)
    starts = bucket_starts(buckets, 0, buckets)
    for row_file in parts:
        if row_file.batch is None:
            continue
        sizes = np.diff(row_file.borders(buckets, 0, buckets, starts))
        if len(borders) == 1:
            counts[0] += sizes
        else:
            bucket = np.repeat(np.arange(buckets), sizes)
            cell = bin_of(row_file.lengths, borders) * buckets + bucket
            counts += np.bincount(cell, minlength=counts.size).reshape(counts.shape)
        drop_page_cache(row_file.buffer)
    return counts


def count_tokens(parts: tuple[RowFile, ...], vocab_size: int) -> I64:
    """Count the occurrences of each token in the rows of all files: int64 [V]."""
    counts = np.zeros(vocab_size, np.int64)
    for row_file in parts:
        if row_file.batch is not None:
            counts += np.bincount(
                row_file.batch["input_ids"].values.to_numpy(), minlength=vocab_size
            )
            drop_page_cache(row_file.buffer)
    return counts


def bin_of(lengths: I64, borders: tuple[int, ...]) -> I64:
    """Return the length bin of rows of these lengths."""
    bins: I64 = np.searchsorted(borders, lengths)
    return bins


def merge_range(
    parts: tuple[RowFile, ...], key_range: ShuffleRange, batch_rows: int, bin_range: tuple[int, int]
) -> Iterator[RowBlock]:
    """Yield the rows of a range in key order, in blocks of `batch_rows`; the last may be smaller.

    Args:
        parts: all intermediate files of the split.
        key_range: range, counted over the rows in `bin_range` only.
        batch_rows: rows per block.
        bin_range: exclusive minimum and inclusive maximum of the row length.
    """
    rest: RowBlock | None = None
    for block, order in _buckets(parts, key_range, bin_range):
        start = 0
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


def _buckets(
    parts: tuple[RowFile, ...], key_range: ShuffleRange, bin_range: tuple[int, int]
) -> Iterator[tuple[RowBlock, I64]]:
    """Yield each bucket's rows, unordered, and the indices of the range's rows in key order."""
    skip, remaining = key_range.skip, key_range.rows
    starts = bucket_starts(key_range.buckets, key_range.first, key_range.end)
    borders = (
        [
            row_file.borders(key_range.buckets, key_range.first, key_range.end, starts)
            for row_file in parts
        ]
        if remaining
        else []
    )
    for bucket in range(key_range.end - key_range.first if remaining else 0):
        tables: list[pa.Table] = []
        for start in range(0, len(parts), FILES_PER_PASS):
            tables += _copied(
                parts[start : start + FILES_PER_PASS],
                borders[start : start + FILES_PER_PASS],
                bucket,
            )
        if not tables:
            continue
        block = RowBlock.from_arrow(pa.concat_tables(tables).combine_chunks().to_batches()[0])
        order = np.argsort(block.rank, kind="stable")
        in_bin = (block.lengths > bin_range[0]) & (block.lengths <= bin_range[1])
        order = order[in_bin[order]][skip : skip + remaining]
        skip, remaining = 0, remaining - len(order)
        yield block, order


def _copied(parts: Sequence[RowFile], borders: Sequence[I64], bucket: int) -> list[pa.Table]:
    """Copy a bucket's rows from a few files into memory; the system maps more than is read."""
    batches = []
    for row_file, starts in zip(parts, borders, strict=True):
        low, high = int(starts[bucket]), int(starts[bucket + 1])
        if row_file.batch is not None and low < high:
            batches.append(row_file.batch.slice(low, high - low))
    tables = [pa.Table.from_batches(batches).combine_chunks()] if batches else []
    for row_file in parts:
        drop_page_cache(row_file.buffer)
    return tables
