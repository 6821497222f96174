"""Stage "dataset", second step: the rows of one range of the ranks, out of all parts, in order.

Every part is mapped once a process, and a bucket's rows in it are one range, found by bisection: the work is linear in the
rows, and memory holds one bucket. What was read is given back to the system, so that a worker never seems to grow.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.core.arrow import file_buffer, local_copy, named_damage, release
from pipeline.core.ragged import I64
from pipeline.core.random_keys import U64
from pipeline.dataset.ranks import RankRange, bucket_borders, bucket_starts
from pipeline.dataset.row_parts import from_part, part_path
from pipeline.dataset.rows import RowBlock

TOGETHER = 64  # parts that are looked at between two releases


@dataclass(frozen=True, slots=True)
class Part:
    """A mapped part. `batch` is None where the part has no rows."""

    buffer: pa.Buffer
    batch: pa.RecordBatch | None
    ranks: U64

    @classmethod
    def open(cls, path: str, stamp: str) -> Part:
        buffer = file_buffer(local_copy(path, stamp))
        with named_damage(path, "remove the unfinished directory and run the stage again"):
            reader = pa.ipc.open_file(pa.BufferReader(buffer))
            batch = reader.get_batch(0) if reader.num_record_batches else None
        release(buffer)
        return cls(buffer, batch, np.zeros(0, np.uint64) if batch is None else batch["rank"].to_numpy())

    @property
    def lengths(self) -> I64:
        """Tokens of each row: int64 [R]."""
        if self.batch is None:
            return np.zeros(0, np.int64)
        lengths: I64 = np.diff(self.batch["input_ids"].offsets.to_numpy()).astype(np.int64)
        return lengths

    def borders(self, buckets: int, first: int, end: int, starts: U64 | None = None) -> I64:
        """Where the buckets first … end begin in its rows: int64 [end - first + 1]."""
        found = bucket_borders(self.ranks, buckets, first, end, starts)
        release(self.buffer)
        return found


@functools.lru_cache(maxsize=2)
def open_parts(directory: str, split: str, parts: int, stamp: str) -> tuple[Part, ...]:
    """All parts of a split, mapped once a process. `stamp`: the fingerprint of what is made, as a directory may be used again."""
    return tuple(Part.open(part_path(directory, split, number), stamp) for number in range(parts))


def count_buckets(parts: tuple[Part, ...], borders: tuple[int, ...], buckets: int) -> I64:
    """Rows of each length bin in each bucket, over all parts: int64 [bins, buckets]."""
    counts = np.zeros((len(borders), buckets), np.int64)
    starts = bucket_starts(buckets, 0, buckets)
    for part in parts:
        if part.batch is None:
            continue
        sizes = np.diff(part.borders(buckets, 0, buckets, starts))
        if len(borders) == 1:
            counts[0] += sizes
        else:
            bucket = np.repeat(np.arange(buckets), sizes)
            cell = bin_of(part.lengths, borders) * buckets + bucket
            counts += np.bincount(cell, minlength=counts.size).reshape(counts.shape)
        release(part.buffer)
    return counts


def count_pieces(parts: tuple[Part, ...], vocab_size: int) -> I64:
    """How often each piece stands in the rows of all parts: int64 [V]."""
    counts = np.zeros(vocab_size, np.int64)
    for part in parts:
        if part.batch is not None:
            counts += np.bincount(part.batch["input_ids"].values.to_numpy(), minlength=vocab_size)
            release(part.buffer)
    return counts


def bin_of(lengths: I64, borders: tuple[int, ...]) -> I64:
    """The length bin of rows of these lengths."""
    found: I64 = np.searchsorted(borders, lengths)
    return found


def merged(parts: tuple[Part, ...], wanted: RankRange, batch_rows: int, bin_range: tuple[int, int]) -> Iterator[RowBlock]:
    """The rows of a range in order of rank, in blocks of `batch_rows`, the last one excepted.

    Args:
        parts: all parts of the split.
        wanted: the range, of the rows in `bin_range` alone.
        batch_rows: rows of a block.
        bin_range: rows have more tokens than the first and at most the second.
    """
    rest: RowBlock | None = None
    for block, order in _buckets(parts, wanted, bin_range):
        at = 0
        while at < len(order):
            room = batch_rows - (0 if rest is None else len(rest))
            piece = block.take(order[at : at + room])
            at += len(piece)
            rest = piece if rest is None else RowBlock.concatenate([rest, piece])
            if len(rest) == batch_rows:
                yield rest
                rest = None
    if rest is not None:
        yield rest


def _buckets(parts: tuple[Part, ...], wanted: RankRange, bin_range: tuple[int, int]) -> Iterator[tuple[RowBlock, I64]]:
    """Each bucket's rows, unordered, and the numbers of the range's among them, in order of rank."""
    skip, left = wanted.skip, wanted.rows
    starts = bucket_starts(wanted.buckets, wanted.first, wanted.end)
    borders = [part.borders(wanted.buckets, wanted.first, wanted.end, starts) for part in parts] if left else []
    for bucket in range(wanted.end - wanted.first if left else 0):
        groups: list[pa.Table] = []
        for at in range(0, len(parts), TOGETHER):
            groups += _copied(parts[at : at + TOGETHER], borders[at : at + TOGETHER], bucket)
        if not groups:
            continue
        block = from_part(pa.concat_tables(groups).combine_chunks().to_batches()[0])
        order = np.argsort(block.rank, kind="stable")
        inside = (block.lengths > bin_range[0]) & (block.lengths <= bin_range[1])
        order = order[inside[order]][skip : skip + left]
        skip, left = 0, left - len(order)
        yield block, order


def _copied(parts: Sequence[Part], borders: Sequence[I64], bucket: int) -> list[pa.Table]:
    """A bucket's rows out of a few parts, in memory. The system maps more of a file than is read of it, so few at a time."""
    pieces = []
    for part, starts in zip(parts, borders, strict=True):
        low, high = int(starts[bucket]), int(starts[bucket + 1])
        if part.batch is not None and low < high:
            pieces.append(part.batch.slice(low, high - low))
    found = [pa.Table.from_batches(pieces).combine_chunks()] if pieces else []
    for part in parts:
        release(part.buffer)
    return found
