"""Source `text`: plain text, one document per file or, with `blank_line_documents`, per block.

Blocks separated by blank lines are the format of google-research/bert: one sentence per line. Each
line is then a paragraph.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.readers.base import (
    HEAD_BYTES,
    PACKED,
    FileReader,
    ReadCounters,
    Slice,
    is_text,
)
from cloze.pipeline.corpus.readers.lines import decode, paragraphs, read_lines
from cloze.pipeline.corpus.readers.streams import CorruptStreamError, as_utf8, open_source, peek

_CHUNK = 1 << 20


class PlainTextOptions(CorpusOptions):
    """Options of source `text`."""

    blank_line_documents: bool = False
    """With source text: a blank line ends a document. Default: one document per file."""


class TextReader(FileReader):
    """Reader of documents `text/<relative file name>[/<number from 1>]`."""

    kind = "text"
    options = PlainTextOptions
    patterns = tuple(
        f"*{ending}{packed}" for ending in (".txt", ".text", ".tokens", ".raw") for packed in PACKED
    )

    def read(
        self, file_slice: Slice, options: PlainTextOptions, tally: ReadCounters
    ) -> Iterator[Document]:
        """Yield the documents of one file."""
        if options.blank_line_documents:
            yield from self._between_blank_lines(file_slice, options, tally)
            return
        data = read_whole(file_slice, options, tally)
        if data is None or (text := decode(data, tally)) is None:
            return
        tally.read(len(data))
        title = posixpath.basename(file_slice.name).partition(".")[0].replace("_", " ")
        yield Document(
            id=f"{self.kind}/{file_slice.name}",
            source=self.kind,
            title=title,
            paragraphs=paragraphs(text),
        )

    def _between_blank_lines(
        self, file_slice: Slice, options: CorpusOptions, tally: ReadCounters
    ) -> Iterator[Document]:
        lines: list[bytes] = []
        number = size = start = 0
        source = open_source(file_slice.path)

        def finish() -> Iterator[Document]:
            nonlocal number
            if not size:
                return
            number += 1
            if size > options.maximum_document_bytes:
                tally.read(size)
                tally.drop("too_long")
                tally.quarantine(
                    "long_line",
                    f"the document at byte {start:,} has {size:,} bytes and was left out",
                    offset=start,
                )
                return
            text = decode(b"\n".join(lines), tally, offset=start)
            if text is not None:
                tally.read(size)
                yield Document(
                    id=f"{self.kind}/{file_slice.name}/{number}",
                    source=self.kind,
                    title="",
                    paragraphs=tuple(line.strip() for line in text.split("\n") if line.strip()),
                )

        try:
            head, unpacked = peek(as_utf8(source), HEAD_BYTES)
            if not is_text(head, tally):
                return
            for line in read_lines(unpacked, tally, options.maximum_document_bytes):
                if line.data is not None and not line.data.strip():
                    yield from finish()
                    lines, size = [], 0
                    continue
                start = start if size else line.offset
                size += line.size + 1
                if size <= options.maximum_document_bytes and line.data is not None:
                    lines.append(line.data)
                else:
                    lines = []
            yield from finish()
        finally:
            source.close()
        if not number and not tally.unreadable:
            tally.quarantine("empty_file", "the file is empty")


def read_whole(file_slice: Slice, options: CorpusOptions, tally: ReadCounters) -> bytes | None:
    """Return the bytes of a file that is one document.

    None, with a quarantine entry, if it is damaged, not text, or longer than the limit.
    """
    pieces: list[bytes] = []
    size = 0
    limit = options.maximum_document_bytes
    source = open_source(file_slice.path)
    try:
        while size <= limit:
            data = source.read(_CHUNK)
            if not size and not is_text(data, tally):
                return None
            if not data:
                return b"".join(pieces)
            pieces.append(data)
            size += len(data)
    except CorruptStreamError as error:
        tally.record_damage(error.reason, str(error), offset=error.offset)
        return None
    finally:
        source.close()
    tally.quarantine(
        "too_large",
        f"the file has more than {limit:,} bytes of text, and is no single document",
    )
    return None


reader = TextReader()
