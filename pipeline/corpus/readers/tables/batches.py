"""Record batches of Parquet, Arrow IPC and Feather files: selected columns, bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cloze.pipeline.corpus.readers.base import Slice
from cloze.pipeline.corpus.readers.tables.records import FIELDS, RecordConverter

_ROWS = 256  # decoded at once
ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, NotImplementedError)

Batches = Iterator[tuple[int, pa.RecordBatch]]  # (preceding rows in the file, batch)


class ColumnMismatchError(Exception):
    """The file lacks a column; the arguments are the message and the remedy."""


def parquet_batches(handle: IO[bytes], file_slice: Slice, records: RecordConverter) -> Batches:
    """Yield batches of the row groups that begin in the slice."""
    file = pq.ParquetFile(handle, pre_buffer=False)
    begin, end = file_slice.span or (0, file_slice.size + 1)
    wanted = _wanted(file.schema_arrow, records)
    passed = 0
    for group, (start, rows) in enumerate(_row_groups(file.metadata)):
        if begin <= start < end:
            row = passed
            for batch in file.iter_batches(
                _ROWS, row_groups=[group], columns=wanted, use_threads=False
            ):
                yield row, batch
                row += batch.num_rows
        passed += rows


def row_group_starts(handle: IO[bytes]) -> list[int]:
    """Return the first byte of each row group of a Parquet file."""
    return [begin for begin, _ in _row_groups(pq.ParquetFile(handle).metadata)]


def arrow_batches(handle: IO[bytes], records: RecordConverter) -> Batches:
    """Yield the batches of an Arrow file or stream, or of a Feather file."""
    magic = handle.read(6)
    handle.seek(0)
    passed = 0
    for batch in _ipc(handle, magic):
        _wanted(batch.schema, records)
        for start in range(0, batch.num_rows, _ROWS):
            yield passed + start, batch.slice(start, _ROWS)
        passed += batch.num_rows


def _ipc(handle: IO[bytes], magic: bytes) -> Iterator[pa.RecordBatch]:
    if magic.startswith(b"FEA1"):
        import pyarrow.feather as feather

        yield from feather.read_table(handle, memory_map=False).to_batches()
    elif magic.startswith(b"ARROW1"):
        with pa.ipc.open_file(handle) as file:
            for number in range(file.num_record_batches):
                yield file.get_batch(number)
    else:
        with pa.ipc.open_stream(handle) as stream:
            yield from stream


def _row_groups(metadata: Any) -> Iterator[tuple[int, int]]:
    """Yield (first byte, rows) of each row group."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        column = group.column(0)
        begin = column.data_page_offset
        if column.dictionary_page_offset is not None:
            begin = min(begin, column.dictionary_page_offset)
        yield begin, group.num_rows


def _wanted(schema: pa.Schema, records: RecordConverter) -> list[str]:
    """Return the columns to read.

    Raises:
        ColumnMismatchError: the text column, or a column named by the user, is missing.
    """
    found = []
    for field in FIELDS:
        name = records.names[field]
        if name in schema.names or name.split(".")[0] in schema.names:
            found.append(name)
        elif field == "text" or field in records.given:
            raise ColumnMismatchError(
                f"the table has no column {name!r} but {', '.join(schema.names)}",
                f"name the column by --column {field}=COLUMN",
            )
    return list(dict.fromkeys(found))


def column(batch: pa.RecordBatch, name: str) -> Any:
    """Return a column, which may be a nested field; None if it is missing."""
    if name in batch.schema.names:
        return batch.column(name)
    first, *inner = name.split(".")
    if first not in batch.schema.names or not inner:
        return None
    try:
        return pc.struct_field(batch.column(first), inner)
    except (pa.ArrowException, TypeError):
        return None
