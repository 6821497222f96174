"""Source `jsonl`: one JSON object a line, plain or as .gz, .bz2, .xz, .zst.

A line that is no object with a text is counted and told with its byte, and the rest of the file is read.
"""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from pipeline.corpus.document import Document
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.readers.base import FileReader, Slice, Tally
from pipeline.corpus.readers.lines import read_lines
from pipeline.corpus.readers.paragraphs import at
from pipeline.corpus.readers.tables.records import FIELDS, Records
from pipeline.corpus.readers.unpack import as_utf8, open_source

PACKED = ("", ".gz", ".bz2", ".xz", ".zst")


class JsonlReader(FileReader):
    """Documents `jsonl/<relative file name>/<id, or number of the line>`."""

    kind = "jsonl"
    has_columns = True
    patterns = tuple(f"*{ending}{packed}" for ending in (".jsonl", ".ndjson", ".json") for packed in PACKED)

    def read(self, file_slice: Slice, options: CorpusOptions, tally: Tally) -> Iterator[Document]:
        """The documents of one file."""
        records = Records(file_slice, options, tally)
        source = open_source(file_slice.path)
        number = 0
        try:
            for number, line in enumerate(read_lines(as_utf8(source), tally, options.maximum_document_bytes), 1):
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
                if not isinstance(record, dict):
                    tally.quarantine("bad_json", f"{where} is no JSON object but {_kind(record)}", offset=line.offset)
                    continue
                document = records.document(
                    {field: at(record, records.names[field]) for field in FIELDS}, number, where, line.offset
                )
                if document is not None:
                    yield document
        finally:
            source.close()
        if not number and not tally.unreadable:
            tally.quarantine("empty_file", "the file holds no line")


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
