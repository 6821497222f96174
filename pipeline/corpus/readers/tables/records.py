"""Sources `parquet` and `arrow`: tables with a text column, read by record batch.

`arrow` reads Arrow IPC files and streams, and Feather of both versions. Large Parquet files are
divided at row groups for several workers; each reads the groups that begin in its slice. Only the
needed columns are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

from cloze.core import storage
from cloze.core.errors import first_line
from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.readers.base import FileReader, ReadCounters, Slice
from cloze.pipeline.corpus.readers.lines import paragraphs

if TYPE_CHECKING:
    from cloze.pipeline.corpus.readers.tables.batches import Batches


SLICE_BYTES = 128 << 20  # approximate, of a Parquet file


class TableReader(FileReader):
    """Reader of documents `<kind>/<relative file name>/<id or #row>`."""

    has_columns = True

    def read(
        self, file_slice: Slice, options: CorpusOptions, tally: ReadCounters
    ) -> Iterator[Document]:
        """Yield the documents of a file, or of the row groups in a slice of it."""
        from cloze.pipeline.corpus.readers.tables.batches import ERRORS, ColumnMismatchError, column

        records = RecordConverter(file_slice, options, tally)
        row = 0
        try:
            with storage.open_input(file_slice.path) as handle:
                for row, batch in self._batches(handle, file_slice, records):
                    columns = {field: column(batch, records.names[field]) for field in FIELDS}
                    for number in range(batch.num_rows):
                        values = {
                            field: None if found is None else found[number].as_py()
                            for field, found in columns.items()
                        }
                        row += 1
                        document = records.document(values, row, f"row {row:,}", row)
                        if document is not None:
                            yield document
        except ColumnMismatchError as error:
            tally.record_damage("no_text_field", error.args[0], remedy=error.args[1])
        except ERRORS as error:
            message = first_line(error).rstrip(".")
            tally.record_damage(
                "damaged", f"the table cannot be read after row {row:,} ({message})", offset=row
            )
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
        from cloze.pipeline.corpus.readers.tables.batches import ERRORS, row_group_starts

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
        return [
            replace(file_slice, span=(begin, end), size=end - begin)
            for begin, end in zip(borders, ends, strict=True)
        ]

    def _batches(self, handle: IO[bytes], file_slice: Slice, records: RecordConverter) -> Batches:
        from cloze.pipeline.corpus.readers.tables.batches import parquet_batches

        return parquet_batches(handle, file_slice, records)


class ArrowReader(TableReader):
    kind = "arrow"
    patterns = ("*.arrow", "*.feather", "*.ipc", "*.arrows")

    def _batches(self, handle: IO[bytes], file_slice: Slice, records: RecordConverter) -> Batches:
        from cloze.pipeline.corpus.readers.tables.batches import arrow_batches

        return arrow_batches(handle, records)


parquet = ParquetReader()
arrow = ArrowReader()


# Conversion of records with fields to documents (jsonl, parquet, arrow).

FIELDS = ("text", "id", "title", "url", "licence")
_USUAL = {"licence": "license"}  # usual name in data sets
_SHOWN = 12  # fields of a record, in a message


class RecordConverter:
    """Converter of the records of one slice to documents.

    Args:
        file_slice: its `fields` name the columns.
        options: options of the stage.
        tally: counters of the slice.
    """

    def __init__(self, file_slice: Slice, options: CorpusOptions, tally: ReadCounters) -> None:
        names = dict(file_slice.fields)
        self.names = {field: names.get(field, _USUAL.get(field, field)) for field in FIELDS}
        self.given = frozenset(names)
        self._slice, self._tally, self._limit = file_slice, tally, options.maximum_document_bytes

    def document(
        self,
        values: Mapping[str, Any],
        number: int,
        where: str,
        offset: int,
        there: Iterable[str] = (),
    ) -> Document | None:
        """Return the document of a record; None after recording why there is none.

        Args:
            values: values of FIELDS; None if missing.
            number: number of the record in the file, from 1.
            where: description for messages: `the line at byte 5`.
            offset: byte in the decompressed file, or row.
            there: names of the record's fields.
        """
        text, name = values["text"], values["id"]
        if isinstance(text, bytes):
            try:
                text = text.decode("utf-8")
            except UnicodeDecodeError as error:
                self._tally.quarantine(
                    "bad_utf8",
                    f"{where} has a text that is not UTF-8 at its byte {error.start:,}",
                    offset=offset,
                )
                return None
        pieces = (
            text
            if isinstance(text, list) and all(isinstance(piece, str) for piece in text)
            else None
        )
        if not isinstance(text, str) and pieces is None:
            sentence = (
                f"{where} has no text in its field {self.names['text']!r}{_listed(there)}"
                if text is None
                else (
                    f"{where} has a {type(text).__name__}, not a text, in its field "
                    f"{self.names['text']!r}"
                )
            )
            self._tally.quarantine("no_text", sentence, offset=offset)
            return None
        if name is None or isinstance(name, (dict, list)) or name == "":
            if "id" in self.given:
                self._tally.quarantine(
                    "no_id", f"{where} has no id in its field {self.names['id']!r}", offset=offset
                )
                return None
            name = f"#{number}"
        elif isinstance(name, str) and name.startswith("#"):
            name = f"#{name}"  # it might be taken for a number
        size = (
            len(text.encode("utf-8", "surrogatepass"))
            if pieces is None
            else sum(len(piece.encode("utf-8", "surrogatepass")) for piece in pieces)
        )
        self._tally.read(size)
        if size > self._limit:
            self._tally.drop("too_long")
            return None
        found = (
            paragraphs(text)
            if pieces is None
            else tuple(line for piece in pieces for line in paragraphs(piece))
        )
        title, url, licence = (
            values[field] if isinstance(values[field], str) else ""
            for field in ("title", "url", "licence")
        )
        return Document(
            id=f"{self._slice.kind}/{self._slice.name}/{name}",
            source=self._slice.kind,
            paragraphs=found,
            title=title,
            url=url,
            licence=licence,
        )


def _listed(names: Iterable[str]) -> str:
    """Return a message part that lists the field names; empty without names."""
    found = list(names)
    if not found:
        return ""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f" (its fields: {', '.join(found[:_SHOWN])}{more}; name the one with --column text=NAME)"
