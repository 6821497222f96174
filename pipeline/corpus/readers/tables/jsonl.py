"""Source `jsonl`: one JSON object a line, or one array of objects a file; plain or as .gz, .bz2, .xz, .zst.

A line, or an element, that is no object with a text is counted and told with its place, and the rest of the file is read. An array is held in
memory whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from pipeline.corpus.document import Document
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.readers.base import FileReader, Slice, Tally
from pipeline.corpus.readers.byte_source import ByteSource, Damaged
from pipeline.corpus.readers.lines import read_lines
from pipeline.corpus.readers.paragraphs import at
from pipeline.corpus.readers.recognized import is_for
from pipeline.corpus.readers.tables.records import FIELDS, Records
from pipeline.corpus.readers.unpack import as_utf8, open_source, peek

MOST_ARRAY_BYTES = 256 << 20
_ARRAY = re.compile(rb"\s*\[\s*\{")
_HEAD_BYTES = 4096
_CHUNK = 1 << 20
PACKED = ("", ".gz", ".bz2", ".xz", ".zst")


class JsonlReader(FileReader):
    """Documents `jsonl/<relative file name>/<id, or number of the line or element>`."""

    kind = "jsonl"
    has_columns = True
    patterns = tuple(f"*{ending}{packed}" for ending in (".jsonl", ".ndjson", ".json") for packed in PACKED)

    def read(self, file_slice: Slice, options: CorpusOptions, tally: Tally) -> Iterator[Document]:
        """The documents of one file."""
        records = Records(file_slice, options, tally)
        source = open_source(file_slice.path)
        number = 0
        try:
            head, unpacked = peek(as_utf8(source), _HEAD_BYTES)
            if "text" not in records.given and not is_for(self.kind, head, tally):
                return
            if _ARRAY.match(head):
                elements = _elements(unpacked, tally)
                if elements is not None:
                    for number, record in enumerate(elements, 1):
                        document = _document(record, records, tally, number, f"element {number:,} of the array", number)
                        if document is not None:
                            yield document
                    return
                source.close()
                source = open_source(file_slice.path)
                unpacked = as_utf8(source)
            for number, line in enumerate(read_lines(unpacked, tally, options.maximum_document_bytes), 1):
                if line.data is None:
                    tally.read(line.size)
                    tally.drop("too_long")
                    tally.quarantine(
                        "long_line",
                        f"the line at byte {line.offset:,} has {line.size:,} bytes and was left out",
                        offset=line.offset,
                    )
                    continue
                if not line.data or line.data.isspace():
                    continue
                where = f"the line at byte {line.offset:,}"
                try:
                    record = orjson.loads(line.data)
                except orjson.JSONDecodeError as error:
                    reason, told = _fault(line.data, str(error))
                    tally.quarantine(reason, f"{where} {told}", offset=line.offset)
                    continue
                document = _document(record, records, tally, number, where, line.offset)
                if document is not None:
                    yield document
        finally:
            source.close()
            if not number and not tally.unreadable:
                tally.quarantine("empty_file", "the file holds no line")


def _elements(source: ByteSource, tally: Tally) -> list[Any] | None:
    """What a file that begins as an array of objects holds; None: its first line alone is an array, so it is a file of lines.

    Where it is damaged or too long the tally is told, and it holds nothing.
    """
    data = bytearray()
    try:
        while len(data) <= MOST_ARRAY_BYTES and (piece := source.read(_CHUNK)):
            data += piece
    except Damaged as error:
        tally.damaged(error.reason, str(error), offset=error.offset)
        return []
    if len(data) > MOST_ARRAY_BYTES:
        told = f"the file is one JSON array of more than {MOST_ARRAY_BYTES >> 20} MiB"
        tally.damaged("long_array", told, remedy="write one object a line (jq -c '.[]')")
        return []
    try:
        found: list[Any] = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        first = bytes(data).lstrip().split(b"\n", 1)[0]
        try:
            orjson.loads(first)
        except orjson.JSONDecodeError:
            tally.damaged("bad_json", f"the file begins as a JSON array and is none ({error})", offset=error.pos)
            return []
        return None
    return found


def _document(record: Any, records: Records, tally: Tally, number: int, where: str, offset: int) -> Document | None:
    """The document of a line or element; None, with the tally told, where it is none."""
    if not isinstance(record, dict):
        tally.quarantine("bad_json", f"{where} is no JSON object but {_kind(record)}", offset=offset)
        return None
    values = {field: at(record, records.names[field]) for field in FIELDS}
    return records.document(values, number, where, offset, record)


def _kind(value: object) -> str:
    return "a list; write one object a line" if isinstance(value, list) else f"a {type(value).__name__}"


def _fault(data: bytes, message: str) -> tuple[str, str]:
    """(reason, words) for a line that does not parse."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return "bad_utf8", f"is not UTF-8 at its byte {error.start:,}"
    if b"\0" in data:
        return "bad_json", f"holds a NUL at its byte {data.index(0):,} and is no JSON"
    return "bad_json", f"is no JSON ({message})"


reader = JsonlReader()
