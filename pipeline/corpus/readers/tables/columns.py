"""Sources `parquet` and `arrow`: tables with a column of texts, read by record batch in flat memory.

`arrow` takes Arrow IPC files and streams, and Feather of both versions. A large Parquet file is cut at row groups, so that workers share it; each
reads the groups that begin in its slice. Only the columns that are wanted are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import IO, TYPE_CHECKING

from pipeline.core import storage
from pipeline.corpus.document import Document
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.readers.base import FileReader, Slice, Tally
from pipeline.corpus.readers.tables.records import FIELDS, Records

if TYPE_CHECKING:
    from pipeline.corpus.readers.tables.batches import Batches

SLICE_BYTES = 128 << 20  # of a Parquet file, about


class TableReader(FileReader):
    """Documents `<kind>/<relative file name>/<id, or number of the row from 1>`."""

    has_columns = True

    def read(self, file_slice: Slice, options: CorpusOptions, tally: Tally) -> Iterator[Document]:
        """The documents of one file, or of the row groups in a slice of it."""
        from pipeline.corpus.readers.tables.batches import ERRORS, Unfit, column

        records = Records(file_slice, options, tally)
        row = 0
        try:
            with storage.open_input(file_slice.path) as handle:
                for row, batch in self._batches(handle, file_slice, records):
                    columns = {field: column(batch, records.names[field]) for field in FIELDS}
                    for number in range(batch.num_rows):
                        values = {field: None if found is None else found[number].as_py() for field, found in columns.items()}
                        row += 1
                        document = records.document(values, row, f"row {row:,}", row)
                        if document is not None:
                            yield document
        except Unfit as error:
            tally.damaged("no_text_field", str(error))
        except ERRORS as error:
            message = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
            tally.damaged("damaged", f"the table cannot be read after row {row:,} ({message})", offset=row)
        else:
            if not row and file_slice.span is None and not tally.unreadable:
                tally.quarantine("empty_file", "the table has no rows")

    def _batches(self, handle: IO[bytes], file_slice: Slice, records: Records) -> Batches:
        raise NotImplementedError


class ParquetReader(TableReader):
    kind = "parquet"
    patterns = ("*.parquet", "*.parq", "*.pq")

    def cut(self, file_slice: Slice) -> list[Slice]:
        """Slices of about SLICE_BYTES that begin where row groups do; a file that cannot be opened is told when it is read."""
        if file_slice.size <= SLICE_BYTES:
            return [file_slice]
        from pipeline.corpus.readers.tables.batches import ERRORS, row_group_starts

        try:
            with storage.open_input(file_slice.path) as handle:
                starts = row_group_starts(handle)
        except ERRORS:
            return [file_slice]
        borders = [0]
        for start in starts:
            if start - borders[-1] >= SLICE_BYTES:
                borders.append(start)
        if len(borders) == 1:
            return [file_slice]
        ends = [*borders[1:], file_slice.size]
        return [replace(file_slice, span=(begin, end), size=end - begin) for begin, end in zip(borders, ends, strict=True)]

    def _batches(self, handle: IO[bytes], file_slice: Slice, records: Records) -> Batches:
        from pipeline.corpus.readers.tables.batches import parquet_batches

        return parquet_batches(handle, file_slice, records)


class ArrowReader(TableReader):
    kind = "arrow"
    patterns = ("*.arrow", "*.feather", "*.ipc", "*.arrows")

    def _batches(self, handle: IO[bytes], file_slice: Slice, records: Records) -> Batches:
        from pipeline.corpus.readers.tables.batches import arrow_batches

        return arrow_batches(handle, records)


parquet = ParquetReader()
arrow = ArrowReader()
