"""Source `jsonl`: one JSON object per line, or one array of objects per file, also compressed.

A line or element that is not an object with a text is counted and recorded; reading continues. An
array is held in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.readers.base import FileReader, ReadCounters, Slice, is_for
from cloze.pipeline.corpus.readers.lines import get_nested, read_lines
from cloze.pipeline.corpus.readers.streams import (
    ByteSource,
    CorruptStreamError,
    as_utf8,
    open_source,
    peek,
)
from cloze.pipeline.corpus.readers.tables.records import FIELDS, RecordConverter

MOST_ARRAY_BYTES = 256 << 20
_ARRAY = re.compile(rb"\s*\[\s*\{")
_GOES_ON = (b"{", b"[", b",", b":")  # end of a line whose JSON continues on the next
_ONE_A_LINE = "write one object a line (jq -c . FILE, or jq -c '.[]' FILE for an array)"
_HEAD_BYTES = 4096
_CHUNK = 1 << 20
PACKED = ("", ".gz", ".bz2", ".xz", ".zst")


class JsonlReader(FileReader):
    """Reader of documents `jsonl/<relative file name>/<id or #line or #element>`."""

    kind = "jsonl"
    has_columns = True
    patterns = tuple(
        f"*{ending}{packed}" for ending in (".jsonl", ".ndjson", ".json") for packed in PACKED
    )

    def read(
        self, file_slice: Slice, options: CorpusOptions, tally: ReadCounters
    ) -> Iterator[Document]:
        """Yield the documents of one file."""
        records = RecordConverter(file_slice, options, tally)
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
                        document = _document(
                            record,
                            records,
                            tally,
                            number,
                            f"element {number:,} of the array",
                            number,
                        )
                        if document is not None:
                            yield document
                    return
                source.close()
                source = open_source(file_slice.path)
                unpacked = as_utf8(source)
            for number, line in enumerate(
                read_lines(unpacked, tally, options.maximum_document_bytes), 1
            ):
                if line.data is None:
                    tally.read(line.size)
                    tally.drop("too_long")
                    tally.quarantine(
                        "long_line",
                        f"the line at byte {line.offset:,} has {line.size:,} bytes and was left "
                        f"out",
                        offset=line.offset,
                    )
                    continue
                if not line.data or line.data.isspace():
                    continue
                where = f"the line at byte {line.offset:,}"
                try:
                    record = orjson.loads(line.data)
                except orjson.JSONDecodeError as error:
                    if not tally.counters and line.data.rstrip().endswith(_GOES_ON):
                        told = "the file is JSON over several lines, and not one object a line"
                        tally.record_damage(
                            "json_over_lines", told, offset=line.offset, remedy=_ONE_A_LINE
                        )
                        return
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


def _elements(source: ByteSource, tally: ReadCounters) -> list[Any] | None:
    """Return the elements of a file that begins as an array of objects.

    None if only the first line is an array, so that the file is read by line. Empty, after
    recording the damage, if the file is damaged or too long.
    """
    data = bytearray()
    try:
        while len(data) <= MOST_ARRAY_BYTES and (piece := source.read(_CHUNK)):
            data += piece
    except CorruptStreamError as error:
        tally.record_damage(error.reason, str(error), offset=error.offset)
        return []
    if len(data) > MOST_ARRAY_BYTES:
        told = f"the file is one JSON array of more than {MOST_ARRAY_BYTES >> 20} MiB"
        tally.record_damage("long_array", told, remedy=_ONE_A_LINE)
        return []
    try:
        found: list[Any] = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        first = bytes(data).lstrip().split(b"\n", 1)[0]
        try:
            orjson.loads(first)
        except orjson.JSONDecodeError:
            tally.record_damage(
                "bad_json",
                f"the file begins as a JSON array and is none ({error})",
                offset=error.pos,
            )
            return []
        return None
    return found


def _document(
    record: Any, records: RecordConverter, tally: ReadCounters, number: int, where: str, offset: int
) -> Document | None:
    """Return the document of a line or element; None after recording why there is none."""
    if not isinstance(record, dict):
        tally.quarantine(
            "bad_json", f"{where} is no JSON object but {_kind(record)}", offset=offset
        )
        return None
    values = {field: get_nested(record, records.names[field]) for field in FIELDS}
    return records.document(values, number, where, offset, record)


def _kind(value: object) -> str:
    return (
        "a list; write one object a line"
        if isinstance(value, list)
        else f"a {type(value).__name__}"
    )


def _fault(data: bytes, message: str) -> tuple[str, str]:
    """Return (reason, message) for a line that does not parse."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return "bad_utf8", f"is not UTF-8 at its byte {error.start:,}"
    if b"\0" in data:
        return "bad_json", f"holds a NUL at its byte {data.index(0):,} and is no JSON"
    return "bad_json", f"is no JSON ({message})"


reader = JsonlReader()
