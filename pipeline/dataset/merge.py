"""External merge of shuffled rows: a shard is a range of the shuffle keys in each length bin.

The rows are in many intermediate files, each sorted by shuffle key (rank). The key space is cut
into equal buckets, and a file has a record batch for each. The number of rows per bucket over all
files determines exactly where each shard begins, and the offsets of the batches determine which
bytes of each file a shard needs:

    key space   0 |--bucket 0--|--bucket 1--|--bucket 2--|--bucket 3--| 2**64
    file        [schema][batch 0][batch 1   ][batch 2][batch 3     ][footer]
    shard 0     `-------------------------'
    shard 1                       `--------------------------------'
"""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cloze.core import storage
from cloze.core.arrow import drop_page_cache, file_buffer, local_copy
from cloze.core.ragged import I64, offsets_of
from cloze.core.random_keys import U64
from cloze.pipeline.dataset.masking.candidates import DRAWING_BIT
from cloze.pipeline.dataset.rows import RowBlock

BUCKET_TOKENS = 1 << 21  # size of a bucket, which a writer reads into memory at once
MOST_BUCKET_TOKENS = 1 << 26
SHARD_BUCKETS = 8
# minimum rows per bucket and file, so that seeking costs less than reading rows
PART_ROWS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleRange:
    """The rows of a shard in one length bin: a range of shuffle keys in terms of buckets.

    Attributes:
        first: first bucket to read.
        end: bucket after the last one to read.
        skip: rows of the bin at the start of the first bucket that belong to the previous range.
        rows: number of rows of the range.
    """

    first: int
    end: int
    skip: int
    rows: int


def bin_borders(length: int, bins: int) -> tuple[int, ...]:
    """Return the maximum row length of each of `bins` equal length bins; the last is `length`."""
    return tuple(sorted({-(-length * number // bins) for number in range(1, bins + 1)}))


def bucket_count(tokens: float, length: int, parts: int, shards: int) -> int:
    """Return the number of buckets for at most about `BUCKET_TOKENS` tokens each.

    A shard has several, since two shards may both read the one where they meet. Buckets are larger
    if the rows are in thousands of intermediate files.

    Args:
        tokens: estimated tokens in all rows.
        length: tokens of a row.
        parts: number of intermediate files.
        shards: number of shards.
    """
    most = max(tokens / (PART_ROWS * parts * length), tokens / MOST_BUCKET_TOKENS)
    return max(1, int(min(most, max(tokens / BUCKET_TOKENS, SHARD_BUCKETS * shards))))


def bucket_borders(sorted_ranks: U64, buckets: int) -> I64:
    """Return where each bucket begins in sorted keys, and their number: int64 [buckets + 1].

    Bucket b starts at b / buckets of the 64-bit range.
    """
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


def plan_ranges(bucket_rows: I64, sizes: I64) -> list[ShuffleRange]:
    """Cut the sorted shuffle keys of a bin into consecutive ranges of the given sizes.

    Args:
        bucket_rows: int64 [buckets], rows of the bin in each bucket over all files.
        sizes: int64 [shards], with the same sum.
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
        ranges.append(ShuffleRange(first=first, end=end, skip=skip, rows=high - low))
    return ranges


# Intermediate files, and the second step of the stage: merge one key range of all of them.

FILES_PER_PASS = 64  # files read between two releases of their pages, or fetched at once
MAGIC_BYTES = 8  # at the start of an Arrow file


def write_part(
    path: str, block: RowBlock, buckets: int, borders: tuple[int, ...], drawings: int = 1
) -> dict[str, Any]:
    """Write an intermediate file; `borders`: maximum row length of each length bin.

    Returns:
        `rows`; `counts`, the rows of each bin in each bucket; `drawings`, the rows of each drawing
        in each bin; `offsets`, the first byte of each bucket and the end of the last.
    """
    bounds = bucket_borders(block.rank, buckets)
    bucket = np.repeat(np.arange(buckets), np.diff(bounds))
    bins = np.searchsorted(borders, block.lengths)
    counts, drawn = (
        np.bincount(bins * size + column, minlength=len(borders) * size).reshape(-1, size)
        for column, size in ((bucket, buckets), (block.offset >> DRAWING_BIT, drawings))
    )
    batch, offsets = block.to_arrow(), [MAGIC_BYTES]
    with storage.atomic_output(path) as handle, pa.ipc.new_file(handle, batch.schema) as writer:
        for low, high in itertools.pairwise(bounds.tolist()):
            writer.write_batch(batch.slice(low, high - low))
            offsets.append(handle.tell())
    result = {"counts": counts.tolist(), "drawings": drawn.tolist(), "offsets": offsets}
    return {"rows": len(block), **result}


@functools.lru_cache(maxsize=1 << 15)
def mapped_part(path: str, stamp: str) -> pa.Buffer:
    """Map an intermediate file, in a store this machine's copy of it, once per process.

    `stamp`: fingerprint of the artifact, because a directory may be reused.
    """
    return file_buffer(local_copy(path, stamp))


def mapped_slices(
    paths: Sequence[str], extents: Sequence[tuple[int, int]], stamp: str, *, ranged: bool
) -> list[pa.Buffer]:
    """Return a range of bytes of each intermediate file, mapped from this machine's disk.

    Args:
        paths: the files.
        extents: first byte and end of each range.
        stamp: see `mapped_part`.
        ranged: fetch the ranges alone from a store, into a temporary file without a name.
    """
    if not ranged:
        return [
            mapped_part(path, stamp).slice(start, end - start)
            for path, (start, end) in zip(paths, extents, strict=True)
        ]
    with tempfile.NamedTemporaryFile(prefix="cloze-ranges-") as file:
        for first in range(0, len(paths), FILES_PER_PASS):
            some = slice(first, first + FILES_PER_PASS)
            file.writelines(storage.read_ranges(paths[some], extents[some]))
        file.flush()
        whole = file_buffer(file.name) if file.tell() else pa.py_buffer(b"")
    ends = np.cumsum([end - start for start, end in extents]).tolist()
    return [whole.slice(low, high - low) for low, high in itertools.pairwise([0, *ends])]


def batches_of(buffer: pa.Buffer, part_schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the record batches in consecutive bytes of an intermediate file, without copying."""
    for message in pa.ipc.MessageReader.open_stream(buffer):
        if message.type == "record batch":  # the first bucket's are preceded by the schema
            yield pa.ipc.read_record_batch(message, part_schema)


def count_tokens(paths: Sequence[str], part_schema: pa.Schema, vocab_size: int) -> I64:
    """Count the occurrences of each token in the rows of all files: int64 [V]."""
    counts = np.zeros(vocab_size, np.int64)
    for path in paths:
        buffer = file_buffer(path)
        for batch in batches_of(buffer.slice(MAGIC_BYTES), part_schema):
            ids = batch["input_ids"].flatten().to_numpy()
            counts += np.bincount(ids, minlength=vocab_size)
        drop_page_cache(buffer)
    return counts


def merge_range(
    parts: Sequence[pa.Buffer],
    part_schema: pa.Schema,
    first: int,
    key_range: ShuffleRange,
    batch_rows: int,
    bin_range: tuple[int, int],
) -> Iterator[RowBlock]:
    """Yield the rows of a range in key order, in blocks of `batch_rows`; the last may be smaller.

    Args:
        parts: of each intermediate file of the split the bytes from bucket `first` on.
        part_schema: schema of these files.
        first: at most the first bucket of the range.
        key_range: range, counted over the rows in `bin_range` only.
        batch_rows: rows per block.
        bin_range: exclusive minimum and inclusive maximum of the row length.
    """
    rest: RowBlock | None = None
    for block, order in _buckets(parts, part_schema, first, key_range, bin_range):
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
    parts: Sequence[pa.Buffer],
    part_schema: pa.Schema,
    first: int,
    key_range: ShuffleRange,
    bin_range: tuple[int, int],
) -> Iterator[tuple[RowBlock, I64]]:
    """Yield each bucket's rows, unordered, and the indices of the range's rows in key order."""
    skip, remaining = key_range.skip, key_range.rows
    files = [
        itertools.islice(batches_of(buffer, part_schema), key_range.first - first, None)
        for buffer in (parts if remaining else ())
    ]
    for _ in range(key_range.end - key_range.first if remaining else 0):
        tables: list[pa.Table] = []
        for start in range(0, len(parts), FILES_PER_PASS):
            some = slice(start, start + FILES_PER_PASS)
            tables += _copied(parts[some], [next(batches) for batches in files[some]])
        if not tables:
            continue
        block = RowBlock.from_arrow(pa.concat_tables(tables).combine_chunks().to_batches()[0])
        order = np.argsort(block.rank, kind="stable")
        in_bin = (block.lengths > bin_range[0]) & (block.lengths <= bin_range[1])
        order = order[in_bin[order]][skip : skip + remaining]
        skip, remaining = 0, remaining - len(order)
        yield block, order


def _copied(parts: Sequence[pa.Buffer], batches: Sequence[pa.RecordBatch]) -> list[pa.Table]:
    """Copy a bucket's rows from a few files into memory; the system maps more than is read."""
    batches = [batch for batch in batches if batch.num_rows]
    tables = [pa.Table.from_batches(batches).combine_chunks()] if batches else []
    for buffer in parts:
        drop_page_cache(buffer)
    return tables
