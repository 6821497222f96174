"""Source `text`: plain text, one document a file, or, with `blank_line_documents`, one from blank line to blank line.

The second is the format of google-research/bert: a sentence a line, blank lines between documents. There each line is a paragraph.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from pipeline.corpus.document import Document
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.readers.base import FileReader, Slice, Tally
from pipeline.corpus.readers.byte_source import Damaged
from pipeline.corpus.readers.lines import decode, read_lines
from pipeline.corpus.readers.paragraphs import paragraphs
from pipeline.corpus.readers.recognized import HEAD_BYTES, is_text
from pipeline.corpus.readers.unpack import as_utf8, open_source, peek

_CHUNK = 1 << 20


class PlainTextOptions(CorpusOptions):
    """How plain text is cut into documents."""

    blank_line_documents: bool = False
    """Whether in plain text (source `text`) a blank line ends a document; else a file is one."""


class TextReader(FileReader):
    """Documents `text/<relative file name>`, or `text/<relative file name>/<number>`, numbered from 1."""

    kind = "text"
    options = PlainTextOptions
    patterns = tuple(
        f"*{ending}{packed}" for ending in (".txt", ".text", ".tokens", ".raw") for packed in ("", ".gz", ".bz2", ".xz", ".zst")
    )

    def read(self, file_slice: Slice, options: PlainTextOptions, tally: Tally) -> Iterator[Document]:
        """The documents of one file."""
        if options.blank_line_documents:
            yield from self._between_blank_lines(file_slice, options, tally)
            return
        data = read_whole(file_slice, options, tally)
        text = None if data is None else decode(data, tally)
        if data is None or text is None:
            return
        tally.read(len(data))
        name = posixpath.basename(file_slice.name).partition(".")[0].replace("_", " ")
        yield Document(id=f"{self.kind}/{file_slice.name}", source=self.kind, title=name, paragraphs=paragraphs(text))

    def _between_blank_lines(self, file_slice: Slice, options: CorpusOptions, tally: Tally) -> Iterator[Document]:
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
                    "long_line", f"the document at byte {start:,} has {size:,} bytes and was left out", offset=start
                )
                return
            text = decode(b"\n".join(lines), tally, offset=start)
            if text is not None:
                tally.read(size)
                found = tuple(line.strip() for line in text.split("\n") if line.strip())
                yield Document(id=f"{self.kind}/{file_slice.name}/{number}", source=self.kind, title="", paragraphs=found)

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


def read_whole(file_slice: Slice, options: CorpusOptions, tally: Tally) -> bytes | None:
    """A file that is a document; None, with the tally told, where it is damaged, no text, or longer than a document may be."""
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
    except Damaged as error:
        tally.damaged(error.reason, str(error), offset=error.offset)
        return None
    finally:
        source.close()
    tally.quarantine("too_large", f"the file has more than {limit:,} bytes of text, and no text of one author has")
    return None


reader = TextReader()
