"""Documents from records with fields, and source `jsonl`.

A JSON file has one object per line, or is one array of objects, which is read into memory. Objects
may also follow each other without a line break. A line or element that is not an object with a text
is counted and recorded; reading continues. Of a repeated key the last value counts, as in Python,
pandas and jq. The records of Parquet and Arrow files (table_files.py) are converted in the same
way.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any

import orjson

from cloze.core import storage
from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.readers import byte_ranges
from cloze.pipeline.corpus.readers.base import (
    HEAD_BYTES,
    Documents,
    FileReader,
    ReadCounters,
    Slice,
    file_patterns,
    has_expected_type,
)
from cloze.pipeline.corpus.readers.encodings import detect_unicode
from cloze.pipeline.corpus.readers.plain_text import Line, paragraphs, read_lines
from cloze.pipeline.corpus.readers.streams import (
    ByteSource,
    CorruptStreamError,
    as_utf8,
    is_packed,
    open_source,
    peek,
)

FIELDS = ("text", "id", "title", "url", "licence")
_USUAL = {"licence": "license"}  # usual name in data sets
_MOST_LISTED = 12  # fields of a record, in a message


class RecordConverter:
    """Converter of the records of one slice, whose `fields` name the columns, to documents."""

    def __init__(self, file_slice: Slice, options: CorpusOptions, tally: ReadCounters) -> None:
        columns = dict(file_slice.fields)
        # column of each field
        self.names = {field: columns.get(field, _USUAL.get(field, field)) for field in FIELDS}
        self.mapped = frozenset(columns)  # fields whose column the user named
        self._slice, self._tally, self._limit = file_slice, tally, options.maximum_document_bytes

    def json(self, record: Any, number: int | str, where: str, offset: int) -> Documents:
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
        number: int | str,
        where: str,
        offset: int,
        available: Iterable[str] = (),
    ) -> Document | None:
        """Return the document of a record; None after recording why there is none.

        Args:
            values: values of FIELDS; None if missing.
            number: number of the record in the file, from 1; `3.2` is the second on line 3.
            where: description of the record for messages, such as `the line at byte 5`.
            offset: byte in the decompressed file, or row.
            available: names of the record's fields.
        """
        text = values["text"]
        try:
            pieces = [
                piece.decode() if isinstance(piece, bytes) else piece
                for piece in (text if isinstance(text, list) else [text])
                if piece is not None
            ]
        except UnicodeDecodeError as error:
            self._tally.quarantine(
                "bad_utf8",
                f"{where} has a text that is not UTF-8 at its byte {error.start:,}",
                offset=offset,
            )
            return None
        if text is None or not all(isinstance(piece, str) for piece in pieces):
            column = self.names["text"]
            if text is None:
                message = f"{where} has no text in its field {column!r}{_listed(available)}"
            else:
                type_name = type(text).__name__
                message = f"{where} has a {type_name}, not a text, in its field {column!r}"
            self._tally.quarantine("no_text", message, offset=offset)
            return None
        record_id = plain(values["id"])
        if not record_id:
            if "id" in self.mapped:
                self._tally.quarantine(
                    "no_id", f"{where} has no id in its field {self.names['id']!r}", offset=offset
                )
                return None
            record_id = f"#{number}"
        elif record_id.startswith("#"):
            record_id = f"#{record_id}"  # it might be taken for a number
        if self._tally.read_texts(pieces) > self._limit:
            self._tally.drop("too_long")
            return None
        title, url, licence = (plain(values[field]) for field in ("title", "url", "licence"))
        return Document(
            id=f"{self._slice.kind}/{self._slice.name}/{record_id}",
            source=self._slice.kind,
            paragraphs=tuple(paragraph for piece in pieces for paragraph in paragraphs(piece)),
            title=title,
            url=url,
            licence=licence,
        )


def plain(value: Any) -> str:
    """Return a field other than the text as text; empty for null, and NaN, pandas' null.

    Numbers keep their digits, objects and lists are JSON; bytes that are no UTF-8 are hexadecimal.
    """
    if isinstance(value, str):
        return value
    if value is None or value != value:
        return ""
    if isinstance(value, bytes):
        try:
            return value.decode().rstrip("\0")  # columns of fixed size are padded
        except UnicodeDecodeError:
            return value.hex()
    if isinstance(value, list) and len(value) == 1:  # R boxes every value
        return plain(value[0])
    if isinstance(value, (bool, dict, list)):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=plain)
    return str(value)


def get_nested(record: Any, name: str) -> Any:
    """Return the value of a possibly nested field (`title`, `meta.title`); None if missing.

    A key with dots has priority over a path.
    """
    if not isinstance(record, dict):
        return None
    if name in record:
        return record[name]
    if "." not in name:
        return None
    dots = [match.start() for match in re.finditer(r"\.", name)]
    found = (get_nested(record.get(name[:dot]), name[dot + 1 :]) for dot in reversed(dots))
    return next((value for value in found if value is not None), None)


def _listed(available: Iterable[str]) -> str:
    """Return the field names for a message; empty without names."""
    listing = list_names(available)
    return listing and f" (its fields: {listing}; name the one with --column text=NAME)"


def list_names(names: Iterable[str]) -> str:
    """Return the first names, and the number of the others."""
    first, *more = [list(names)[:_MOST_LISTED], *list(names)[_MOST_LISTED:]]
    return ", ".join(first) + (f" and {len(more):,} more" if more else "")


# Source `jsonl`.

MOST_ARRAY_BYTES = 256 << 20
_ARRAY = re.compile(rb"\s*\[\s*\{")
_GAP = re.compile("[\\s\ufeff\x1e]*")  # between values; also marks of byte order and of jq --seq
_LINE_ADVICE = "write one object a line (jq -c . FILE, or jq -c '.[]' FILE for an array)"
_CHUNK = 1 << 20


class JsonlReader(FileReader):
    """Reader of documents `jsonl/<relative file name>/<id or #line or #element>`.

    A large uncompressed file with an object per line is cut; its records are then `#@byte`.
    """

    kind = "jsonl"
    has_columns = True
    patterns = file_patterns(".jsonl", ".ndjson", ".json")

    def cut(self, file_slice: Slice) -> list[Slice]:
        """Divide a large file between lines; a compressed one, an array and UTF-16 stay whole."""
        if not byte_ranges.is_large(file_slice) or is_packed(file_slice.path):
            return [file_slice]
        with storage.open_input(file_slice.path) as handle:
            head = handle.read(HEAD_BYTES)
        if _ARRAY.match(head) or detect_unicode(head)[0] not in ("", "utf-8"):
            return [file_slice]
        return byte_ranges.cut(file_slice, lambda data: data.find(b"\n") + 1 or None)

    def read(self, file_slice: Slice, options: CorpusOptions, tally: ReadCounters) -> Documents:
        """Yield the documents of one file."""
        converter = RecordConverter(file_slice, options, tally)
        begin = file_slice.span[0] if file_slice.span else None
        with contextlib.closing(open_source(file_slice.path, file_slice.span)) as source:
            head, unpacked = peek(as_utf8(source) if begin is None else source)
            # the user may name a field of an article of Wikimedia Enterprise
            is_named = "text" in converter.mapped and head.lstrip()[:1] in (b"{", b"[")
            if not begin and not is_named and not has_expected_type(head, tally):
                return
            is_array = begin is None and _ARRAY.match(head)
            id_name = converter.names["id"]
            content = _elements(unpacked, id_name, tally) if is_array else unpacked
            if isinstance(content, list):
                count = len(content)
                for number, record in enumerate(content, 1):
                    where = f"element {number:,} of the array"
                    yield from converter.json(record, number, where, number)
            else:
                lines = read_lines(content, options.maximum_document_bytes, tally.record_damage)
                count = yield from _read_lines(lines, converter, tally, begin)
        if not count and not begin and not tally.unreadable:
            tally.quarantine("empty_file", "the file holds no line")


def _read_lines(
    lines: Iterator[Line], converter: RecordConverter, tally: ReadCounters, begin: int | None
) -> Generator[Document, None, int]:
    """Yield the documents of a file with one object per line; return the number of lines read.

    Args:
        begin: first byte of a slice, whose lines have no numbers. None: the file is whole.
    """
    number = 0
    for number, line in enumerate(lines, 1):
        offset = (begin or 0) + line.offset
        name = number if begin is None else f"@{offset}"
        where = f"the line at byte {offset:,}" + (f" (line {number:,})" if begin is None else "")
        if line.data is None:
            tally.drop_too_long(line.size, where, offset=offset)
            continue
        if not line.data or line.data.isspace():
            continue
        try:
            found = parse(line.data, converter.names["id"])
        except ValueError as error:
            continues = isinstance(error, json.JSONDecodeError) and (
                error.pos >= len(error.doc.rstrip())
            )
            if continues and not begin and not tally.counters:
                tally.record_damage(
                    "json_over_lines",
                    "the file is JSON over several lines, and not one object a line",
                    offset=offset,
                    remedy=_LINE_ADVICE,
                )
                break
            reason, fault = "bad_json", f"is no JSON ({error})"
            if isinstance(error, UnicodeDecodeError):
                reason, fault = "bad_utf8", f"is not UTF-8 at its byte {error.start:,}"
            tally.quarantine(reason, f"{where} {fault}", offset=offset)
            continue
        for place, record in enumerate(found):
            yield from converter.json(
                record, f"{name}.{place + 1}" if place else name, where, offset
            )
    return number


def parse(data: bytes | bytearray, id_name: str) -> list[Any]:
    """Return the JSON values that follow each other in `data`.

    orjson is fast, but refuses what other programs write: NaN, lone surrogates, control characters
    in strings, several values. It also rounds numbers, so that different ids would become equal.

    Args:
        data: a line or an array, in UTF-8.
        id_name: field whose value keeps its exact digits.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return _parse_leniently(data)
    records = value if isinstance(value, list) else [value]
    if any(isinstance(get_nested(record, id_name), (float, dict, list)) for record in records):
        return _parse_leniently(data)
    return [value]


class Number(float):
    """A number of JSON that is shown with its original digits."""

    def __new__(cls, digits: str) -> Number:
        number = super().__new__(cls, digits)
        number.digits = digits
        return number

    digits: str

    def __str__(self) -> str:
        return self.digits


_MOST_DIGITS = 4000  # of an integer; Python refuses longer ones, which would cost the line
_LENIENT = json.JSONDecoder(
    strict=False,
    parse_float=Number,
    parse_int=lambda digits: (int if len(digits) < _MOST_DIGITS else Number)(digits),
)


def _parse_leniently(data: bytes | bytearray) -> list[Any]:
    """Return the JSON values in `data` by Python's parser, which takes what it writes itself."""
    if b"\0" in data:
        raise ValueError(f"it holds a NUL at its byte {data.index(0):,}")
    text = data.decode("utf-8", "surrogatepass")  # Java and MySQL write surrogates
    values, position = list[Any](), 0
    while (start := _GAP.match(text, position)) and (position := start.end()) < len(text):
        try:
            value, position = _LENIENT.raw_decode(text, position)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        values.append(value)
    return values


def _elements(source: ByteSource, id_name: str, tally: ReadCounters) -> list[Any] | ByteSource:
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
        values = parse(data, id_name)
        if len(values) == 1 and isinstance(values[0], list):
            return values[0]
    except ValueError as error:
        first_line = bytes(data).lstrip().split(b"\n", 1)[0]
        try:
            parse(first_line, id_name)
        except ValueError:
            message = f"the file begins as a JSON array, but is not valid JSON ({error})"
            tally.record_damage("bad_json", message, offset=getattr(error, "pos", 0))
            return []
    return io.BytesIO(data)


reader = JsonlReader()
