"""Sources `parquet` and `arrow`: tables with a column of texts, read by record batch in flat memory.

`arrow` takes Arrow IPC files and streams, and Feather of both versions. A large Parquet file is cut at row groups, so that workers share it; each
reads the groups that begin in its part of the bytes. Only the columns that are wanted are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core import storage
from pipeline.corpus.document import Document
from pipeline.corpus.readers.base import FileReader, Settings, Split, Tally
from pipeline.corpus.readers.tables.records import FIELDS, Records

PART_BYTES = 128 << 20  # of a Parquet file, about
_ROWS = 256  # decoded at once
_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, NotImplementedError)


class _Unfit(Exception):
    """The file's columns are not those that are wanted."""


class TableReader(FileReader):
    """Documents `<kind>/<relative file name>/<id, or number of the row from 1>`."""

    def read(self, split: Split, settings: Settings, tally: Tally) -> Iterator[Document]:
        """The documents of one file, or of the row groups in a part of it."""
        records = Records(split, settings, tally)
        row = 0
        try:
            with storage.open_input(split.path) as handle:
                for row, batch in self._batches(handle, split, records):
                    columns = {field: _column(batch, records.names[field]) for field in FIELDS}
                    for number in range(batch.num_rows):
                        values = {
                            field: None if column is None else column[number].as_py() for field, column in columns.items()
                        }
                        row += 1
                        document = records.document(values, row, f"row {row:,}", row)
                        if document is not None:
                            yield document
        except _Unfit as error:
            tally.damaged("no_text_field", str(error))
        except _ERRORS as error:
            message = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
            tally.damaged("damaged", f"the table cannot be read after row {row:,} ({message})", offset=row)
        else:
            if not row and split.part is None and not tally.rejected:
                tally.quarantine("empty_file", "the table has no rows")

    def _batches(self, handle: IO[bytes], split: Split, records: Records) -> Iterator[tuple[int, pa.RecordBatch]]:
        """(rows before it in the file, batch)"""
        raise NotImplementedError


class ParquetReader(TableReader):
    kind = "parquet"
    patterns = ("*.parquet", "*.parq", "*.pq")

    def parts(self, split: Split) -> list[Split]:
        """Parts of about PART_BYTES that begin where row groups do; a file that cannot be opened is told when it is read."""
        if split.size <= PART_BYTES:
            return [split]
        try:
            with storage.open_input(split.path) as handle:
                starts = [begin for begin, _ in _groups(pq.ParquetFile(handle).metadata)]
        except _ERRORS:
            return [split]
        borders = [0]
        for start in starts:
            if start - borders[-1] >= PART_BYTES:
                borders.append(start)
        if len(borders) == 1:
            return [split]
        ends = [*borders[1:], split.size]
        return [replace(split, part=(begin, end), size=end - begin) for begin, end in zip(borders, ends, strict=True)]

    def _batches(self, handle: IO[bytes], split: Split, records: Records) -> Iterator[tuple[int, pa.RecordBatch]]:
        file = pq.ParquetFile(handle, pre_buffer=False)
        begin, end = split.part or (0, split.size + 1)
        wanted = _wanted(file.schema_arrow, records)
        passed = 0
        for group, (start, rows) in enumerate(_groups(file.metadata)):
            if begin <= start < end:
                row = passed
                for batch in file.iter_batches(_ROWS, row_groups=[group], columns=wanted, use_threads=False):
                    yield row, batch
                    row += batch.num_rows
            passed += rows


class ArrowReader(TableReader):
    kind = "arrow"
    patterns = ("*.arrow", "*.feather", "*.ipc", "*.arrows")

    def _batches(self, handle: IO[bytes], split: Split, records: Records) -> Iterator[tuple[int, pa.RecordBatch]]:
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


def _groups(metadata: Any) -> Iterator[tuple[int, int]]:
    """(first byte, rows) of each row group."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        column = group.column(0)
        begin = column.data_page_offset
        if column.dictionary_page_offset is not None:
            begin = min(begin, column.dictionary_page_offset)
        yield begin, group.num_rows


def _wanted(schema: pa.Schema, records: Records) -> list[str]:
    """The columns to read. Raises `_Unfit` if there is none with the text, or if one that was named is missing."""
    found = []
    for field in FIELDS:
        name = records.names[field]
        if name in schema.names or name.split(".")[0] in schema.names:
            found.append(name)
        elif field == "text" or field in records.given:
            raise _Unfit(
                f"the table has no column {name!r} but {', '.join(schema.names)}; name the column by --field {field}=COLUMN"
            )
    return list(dict.fromkeys(found))


def _column(batch: pa.RecordBatch, name: str) -> Any:
    """A column, which may be a field of another; None if there is none."""
    if name in batch.schema.names:
        return batch.column(name)
    first, *inner = name.split(".")
    if first not in batch.schema.names or not inner:
        return None
    try:
        return pc.struct_field(batch.column(first), inner)
    except (pa.ArrowException, TypeError):
        return None


parquet = ParquetReader()
arrow = ArrowReader()
