"""What is unreadable in a text is named by its own byte, in whichever line and document it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.readers import READERS
from cloze.pipeline.corpus.readers.base import ReadCounters
from tests.pipeline.corpus.reading import options_of

LINES = [b"One.", b"Two \xc3\xa9.", b"", b"", b"Three.", b"Four.", b"Five.", b"", b"Six."]
WRITTEN = [n for n, line in enumerate(LINES) if line]


def read(kind: str, path: Path, **settings: Any) -> tuple[list[Document], ReadCounters]:
    reader = READERS.find(kind)
    (file_slice,) = reader.slices(str(path))
    tally = ReadCounters(file_slice)
    documents = list(reader.read(file_slice, options_of(reader, **settings), tally))
    return documents, tally


@pytest.mark.parametrize("number", WRITTEN)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize(
    ("kind", "name", "settings"),
    [("babylm", "a.train", {}), ("text", "a.txt", {"blank_line_documents": True})],
)
def test_the_byte_that_is_no_text_is_named(
    kind: str, name: str, settings: dict[str, Any], end: bytes, number: int, tmp_path: Path
) -> None:
    lines = [*LINES]
    lines[number] += b" \xc3\xa9\xff \xc3\xa9\xc3\xa9"  # mostly UTF-8
    data = end.join(lines)
    (tmp_path / name).write_bytes(data)
    documents, tally = read(kind, tmp_path, **settings)
    assert [(item.reason, item.offset) for item in tally.unreadable] == [
        ("bad_utf8", data.index(b"\xff"))
    ]
    assert len(documents) == 2, "only its document is left out"


@pytest.mark.parametrize("number", WRITTEN)
def test_a_line_that_is_too_long_is_named_where_it_begins(number: int, tmp_path: Path) -> None:
    lines = [*LINES]
    lines[number] = b"x" * 60
    data = b"\n".join(lines)
    (tmp_path / "a.train").write_bytes(data)
    documents, tally = read("babylm", tmp_path, maximum_document_bytes=40)
    assert [(item.reason, item.offset) for item in tally.unreadable] == [
        ("long_line", data.index(b"x"))
    ]
    rest = [line.decode() for line in LINES if line and line != LINES[number]]
    assert [line for document in documents for line in document.paragraphs] == rest
