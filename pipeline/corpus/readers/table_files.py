"""Sources `parquet` and `arrow`: tables with a text column, read by record batch.

`arrow` reads Arrow IPC files and streams, and Feather of both versions. Large Parquet files are
divided at row groups for several workers; each reads the groups that begin in its slice. Only the
needed columns are read. pyarrow is imported when a file is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

from cloze.core import storage
from cloze.core.errors import cause_of
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.readers.base import (
    HEAD_BYTES,
    Documents,
    FileReader,
    ReadCounters,
    Slice,
    has_expected_type,
)
from cloze.pipeline.corpus.readers.records import FIELDS, RecordConverter, list_names

if TYPE_CHECKING:
    import pyarrow as pa

    Batches = Iterator[tuple[int, pa.RecordBatch]]  # (preceding rows in the file, batch)


SLICE_BYTES = 128 << 20  # approximate, of a Parquet file
_ROWS = 256  # decoded at once


class ColumnMismatchError(Exception):
    """The file lacks a column; the arguments are the message and the remedy."""


class TableReader(FileReader):
    """Reader of documents `<kind>/<relative file name>/<id or #row>`."""

    has_columns = True

    def read(self, file_slice: Slice, options: CorpusOptions, tally: ReadCounters) -> Documents:
        """Yield the documents of a file, or of the row groups in a slice of it."""
        converter = RecordConverter(file_slice, options, tally)
        row = 0
        try:
            with storage.open_input(file_slice.path) as handle:
                for row, batch in self._batches(handle, file_slice, converter):
                    paths = _paths(batch.schema)
                    columns = {
                        field: _column(batch, paths.get(converter.names[field]), field)
                        for field in FIELDS
                    }
                    for index in range(batch.num_rows):
                        values = {
                            field: None if column is None else column[index].as_py()
                            for field, column in columns.items()
                        }
                        row += 1
                        document = converter.document(values, row, f"row {row:,}", row)
                        if document is not None:
                            yield document
        except ColumnMismatchError as error:
            tally.record_damage("no_text_field", error.args[0], remedy=error.args[1])
        except _errors() as error:
            with storage.open_input(file_slice.path) as handle:
                is_table = has_expected_type(handle.read(HEAD_BYTES), tally)
            if is_table:
                sentence = f"the table cannot be read after row {row:,} ({cause_of(error)})"
                tally.record_damage("damaged", sentence, offset=row)
        else:
            if not row and file_slice.span is None and not tally.unreadable:
                tally.quarantine("empty_file", "the table has no rows")

    def _batches(self, handle: IO[bytes], file_slice: Slice, records: RecordConverter) -> Batches:
        raise NotImplementedError


class ParquetReader(TableReader):
    kind = "parquet"
    patterns = ("*.parquet", "*.parq", "*.pq")

    def cut(self, file_slice: Slice) -> list[Slice]:
        """Divide the file at row groups into slices of about SLICE_BYTES.

        Errors of opening the file are reported when it is read.
        """
        if file_slice.size <= SLICE_BYTES:
            return [file_slice]
        import pyarrow.parquet as pq

        try:
            with storage.open_input(file_slice.path) as handle:
                starts = [begin for begin, _ in _row_groups(pq.ParquetFile(handle).metadata)]
        except _errors():
            return [file_slice]
        borders = [0]
        for start in starts:
            if start - borders[-1] >= SLICE_BYTES:
                borders.append(start)
        return file_slice.split([*borders, file_slice.size])

    def _batches(self, handle: IO[bytes], file_slice: Slice, records: RecordConverter) -> Batches:
        """Yield batches of the row groups that begin in the slice."""
        import pyarrow.parquet as pq

        file = pq.ParquetFile(handle, pre_buffer=False)
        begin, end = file_slice.span or (0, file_slice.size + 1)
        columns = _check_columns(file.schema_arrow, records)
        preceding_rows = 0
        for group, (start, rows) in enumerate(_row_groups(file.metadata)):
            if begin <= start < end:
                row = preceding_rows
                for batch in file.iter_batches(
                    _ROWS, row_groups=[group], columns=columns, use_threads=False
                ):
                    yield row, batch
                    row += batch.num_rows
            preceding_rows += rows


class ArrowReader(TableReader):
    kind = "arrow"
    patterns = ("*.arrow", "*.feather", "*.ipc", "*.arrows")

    def _batches(self, handle: IO[bytes], file_slice: Slice, records: RecordConverter) -> Batches:
        """Yield the batches of an Arrow file or stream, or of a Feather file."""
        preceding_rows = 0
        for batch in _ipc(handle):
            _check_columns(batch.schema, records)
            for start in range(0, batch.num_rows, _ROWS):
                yield preceding_rows + start, batch.slice(start, _ROWS)
            preceding_rows += batch.num_rows


def _errors() -> tuple[type[Exception], ...]:
    """Return the errors that a damaged table causes."""
    import pyarrow as pa

    return pa.ArrowException, OSError, ValueError, KeyError, NotImplementedError, OverflowError


def _ipc(handle: IO[bytes]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    magic = handle.read(6)
    handle.seek(0)
    if magic.startswith(b"FEA1"):
        import pyarrow.feather as feather

        yield from feather.read_table(handle, memory_map=False).to_batches()
    elif magic.startswith(b"ARROW1"):
        with pa.ipc.open_file(handle) as file:
            yield from map(file.get_batch, range(file.num_record_batches))
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


def _paths(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Return the path to each column and field of a struct, by name; columns have priority."""
    import pyarrow as pa

    paths: dict[str, tuple[str, ...]] = {}
    pending: list[tuple[tuple[str, ...], Any]]
    pending = [((field.name,), field.type) for field in schema]
    for path, kind in pending:
        paths.setdefault(".".join(path), path)
        if pa.types.is_struct(kind):
            pending += [((*path, field.name), field.type) for field in kind]
    return paths


def _check_columns(schema: pa.Schema, records: RecordConverter) -> list[str]:
    """Return the columns to read.

    Raises:
        ColumnMismatchError: the text column, or a column named by the user, is missing.
    """
    paths = _paths(schema)
    for field in ("text", *records.mapped):
        if records.names[field] not in paths:
            raise ColumnMismatchError(
                f"the table has no column {records.names[field]!r} but {list_names(paths)}",
                f"name the column by --column {field}=COLUMN",
            )
    return [name for name in dict.fromkeys(records.names.values()) if name in paths]


def _column(batch: pa.RecordBatch, path: tuple[str, ...] | None, field: str) -> Any:
    """Return the column or nested field at a path; None without one.

    Times become strings here: in Python they would lose nanoseconds, or need pandas.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if path is None:
        return None
    column = batch.column(path[0])
    for name in path[1:]:
        column = pc.struct_field(column, [name])
    is_time = pa.types.is_temporal(column.type) and not pa.types.is_interval(column.type)
    return column.cast(pa.string()) if is_time and field != "text" else column


parquet = ParquetReader()
arrow = ArrowReader()
