"""Documents from records with fields, and source `jsonl`.

A JSON file has one object per line, or is one array of objects, which is read into memory. A line
or element that is not an object with a text is counted and recorded; reading continues. The records
of Parquet and Arrow files (table_files.py) are converted in the same way.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any

import orjson

from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.readers.base import (
    HEAD_BYTES,
    FileReader,
    ReadCounters,
    Slice,
    file_patterns,
    has_expected_type,
)
from cloze.pipeline.corpus.readers.plain_text import Line, paragraphs, read_lines
from cloze.pipeline.corpus.readers.streams import (
    ByteSource,
    CorruptStreamError,
    as_utf8,
    open_source,
    peek,
)

FIELDS = ("text", "id", "title", "url", "licence")
_USUAL = {"licence": "license"}  # usual name in data sets
_MOST_LISTED = 12  # fields of a record, in a message


class RecordConverter:
    """Converter of the records of one slice to documents.

    Args:
        file_slice: slice whose `fields` name the columns.
        options: options of the stage.
        tally: counters of the slice.

    Attributes:
        names: column of each field.
        mapped: fields whose column the user named.
    """

    def __init__(self, file_slice: Slice, options: CorpusOptions, tally: ReadCounters) -> None:
        columns = dict(file_slice.fields)
        self.names = {field: columns.get(field, _USUAL.get(field, field)) for field in FIELDS}
        self.mapped = frozenset(columns)
        self._slice, self._tally, self._limit = file_slice, tally, options.maximum_document_bytes

    def json(self, record: Any, number: int, where: str, offset: int) -> Iterator[Document]:
        """Yield the document of a JSON value, unless it is no object with a text."""
        if isinstance(record, dict):
            values = {field: get_nested(record, self.names[field]) for field in FIELDS}
            document = self.document(values, number, where, offset, record)
            if document is not None:
                yield document
            return
        description = f"a {type(record).__name__}"
        if isinstance(record, list):
            description = "a list; write one object a line"
        self._tally.quarantine(
            "bad_json", f"{where} is no JSON object but {description}", offset=offset
        )

    def document(
        self,
        values: Mapping[str, Any],
        number: int,
        where: str,
        offset: int,
        available: Iterable[str] = (),
    ) -> Document | None:
        """Return the document of a record; None after recording why there is none.

        Args:
            values: values of FIELDS; None if missing.
            number: number of the record in the file, from 1.
            where: description of the record for messages, such as `the line at byte 5`.
            offset: byte in the decompressed file, or row.
            available: names of the record's fields.
        """
        text, record_id = values["text"], values["id"]
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
        pieces = [text] if isinstance(text, str) else text
        if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
            column = self.names["text"]
            if text is None:
                message = f"{where} has no text in its field {column!r}{_listed(available)}"
            else:
                type_name = type(text).__name__
                message = f"{where} has a {type_name}, not a text, in its field {column!r}"
            self._tally.quarantine("no_text", message, offset=offset)
            return None
        if record_id is None or isinstance(record_id, (dict, list)) or record_id == "":
            if "id" in self.mapped:
                self._tally.quarantine(
                    "no_id", f"{where} has no id in its field {self.names['id']!r}", offset=offset
                )
                return None
            record_id = f"#{number}"
        elif isinstance(record_id, str) and record_id.startswith("#"):
            record_id = f"#{record_id}"  # it might be taken for a number
        if self._tally.read_texts(pieces) > self._limit:
            self._tally.drop("too_long")
            return None
        title, url, licence = (
            values[field] if isinstance(values[field], str) else ""
            for field in ("title", "url", "licence")
        )
        return Document(
            id=f"{self._slice.kind}/{self._slice.name}/{record_id}",
            source=self._slice.kind,
            paragraphs=tuple(paragraph for piece in pieces for paragraph in paragraphs(piece)),
            title=title,
            url=url,
            licence=licence,
        )


def get_nested(record: Any, name: str) -> Any:
    """Return the value of a possibly nested field (`title`, `meta.title`); None if missing."""
    if isinstance(record, dict) and name in record:
        return record[name]
    value = record
    for key in name.split("."):
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return value


def _listed(available: Iterable[str]) -> str:
    """Return the field names for a message; empty without names."""
    names = list(available)
    if not names:
        return ""
    omitted = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    listing = ", ".join(names[:_MOST_LISTED])
    return f" (its fields: {listing}{omitted}; name the one with --column text=NAME)"


# Source `jsonl`.

MOST_ARRAY_BYTES = 256 << 20
_ARRAY = re.compile(rb"\s*\[\s*\{")
_CONTINUES = (b"{", b"[", b",", b":")  # end of a line whose JSON continues on the next
_LINE_ADVICE = "write one object a line (jq -c . FILE, or jq -c '.[]' FILE for an array)"
_CHUNK = 1 << 20


class JsonlReader(FileReader):
    """Reader of documents `jsonl/<relative file name>/<id or #line or #element>`."""

    kind = "jsonl"
    has_columns = True
    patterns = file_patterns(".jsonl", ".ndjson", ".json")

    def read(
        self, file_slice: Slice, options: CorpusOptions, tally: ReadCounters
    ) -> Iterator[Document]:
        """Yield the documents of one file."""
        converter = RecordConverter(file_slice, options, tally)
        with contextlib.closing(open_source(file_slice.path)) as source:
            head, unpacked = peek(as_utf8(source), HEAD_BYTES)
            if "text" not in converter.mapped and not has_expected_type(head, tally):
                return
            content = _elements(unpacked, tally) if _ARRAY.match(head) else unpacked
            if isinstance(content, list):
                count = len(content)
                for number, record in enumerate(content, 1):
                    where = f"element {number:,} of the array"
                    yield from converter.json(record, number, where, number)
            else:
                lines = read_lines(content, options.maximum_document_bytes, tally.record_damage)
                count = yield from _read_lines(lines, converter, tally)
        if not count and not tally.unreadable:
            tally.quarantine("empty_file", "the file holds no line")


def _read_lines(
    lines: Iterator[Line], converter: RecordConverter, tally: ReadCounters
) -> Generator[Document, None, int]:
    """Yield the documents of a file with one object per line; return the number of lines read."""
    number = 0
    for number, line in enumerate(lines, 1):
        where = f"the line at byte {line.offset:,}"
        if line.data is None:
            message = f"{where} has {line.size:,} bytes and was left out"
            tally.drop_too_long(line.size, message, offset=line.offset)
            continue
        if not line.data or line.data.isspace():
            continue
        try:
            record = orjson.loads(line.data)
        except orjson.JSONDecodeError as error:
            if not tally.counters and line.data.rstrip().endswith(_CONTINUES):
                tally.record_damage(
                    "json_over_lines",
                    "the file is JSON over several lines, and not one object a line",
                    offset=line.offset,
                    remedy=_LINE_ADVICE,
                )
                break
            reason, fault = _fault(line.data, str(error))
            tally.quarantine(reason, f"{where} {fault}", offset=line.offset)
            continue
        yield from converter.json(record, number, where, line.offset)
    return number


def _elements(source: ByteSource, tally: ReadCounters) -> list[Any] | ByteSource:
    """Return the elements of a file that begins as an array of objects.

    Return the content as a source if only the first line is an array, so that the file is read by
    line. Return an empty list, after recording the damage, if the file is damaged or too long.
    """
    data = bytearray()
    try:
        while len(data) <= MOST_ARRAY_BYTES and (chunk := source.read(_CHUNK)):
            data += chunk
    except CorruptStreamError as error:
        tally.record_damage(error.reason, str(error), offset=error.offset)
        return []
    if len(data) > MOST_ARRAY_BYTES:
        message = f"the file is one JSON array of more than {MOST_ARRAY_BYTES >> 20} MiB"
        tally.record_damage("long_array", message, remedy=_LINE_ADVICE)
        return []
    try:
        elements: list[Any] = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        first_line = bytes(data).lstrip().split(b"\n", 1)[0]
        try:
            orjson.loads(first_line)
        except orjson.JSONDecodeError:
            message = f"the file begins as a JSON array, but is not valid JSON ({error})"
            tally.record_damage("bad_json", message, offset=error.pos)
            return []
        return io.BytesIO(data)
    return elements


def _fault(data: bytes, message: str) -> tuple[str, str]:
    """Return (reason, message) for a line that does not parse."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return "bad_utf8", f"is not UTF-8 at its byte {error.start:,}"
    if b"\0" in data:
        return "bad_json", f"is no JSON: it holds a NUL at its byte {data.index(0):,}"
    return "bad_json", f"is no JSON ({message})"


reader = JsonlReader()
