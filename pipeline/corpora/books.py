"""Source `books`: novels and other books as plain text or EPUB. A document is a chapter.

So that a random next passage comes from somewhere else and that chapters can be held out, a book is cut at its chapter
headings, and a text without any at paragraph borders every 20,000 characters or so. What surrounds the book
(licence, title page, table of contents, transcriber's notes) goes. The layout of a text is in
pipeline/corpora/book_text.py, the reading of an EPUB in pipeline/corpora/epub.py.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from pipeline import storage
from pipeline.corpora.reader import MAXIMUM_DOCUMENT_BYTES, FileReader, Settings, Split, Tally
from pipeline.text.document import Document

LONGEST_CHAPTER = 100_000  # characters; what is longer is cut like a text without chapters
PIECE = 20_000  # characters of a piece
SHORTEST_CHAPTER = 400  # characters; what is shorter (an epigraph, a part's title page) goes with the chapter after it
_MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


class BooksReader(FileReader):
    """Documents `books/<relative file name>/<number>`, numbered from 1 in reading order."""

    kind = "books"
    patterns = ("*.txt", "*.epub")

    def read(self, split: Split, settings: Settings, tally: Tally) -> Iterator[Document]:
        """The chapters of one book."""
        from pipeline.corpora import book_text, epub

        if split.path.lower().endswith(".epub"):
            book = epub.read(split.path, tally)
        elif split.size > MAXIMUM_DOCUMENT_BYTES:
            tally.quarantine(
                "too_large", f"a text of {split.size:,} bytes is no book (the limit is {MAXIMUM_DOCUMENT_BYTES:,})"
            )
            return
        else:
            with storage.open_input(split.path) as handle:
                text = decode(handle.read(), tally)
            book = None if text is None else book_text.read(text, tally)
        if book is None:
            return
        name = posixpath.splitext(posixpath.basename(split.name))[0].replace("_", " ")
        sections = merged(book.sections)
        if not sections and not tally.rejected:
            tally.quarantine("empty_file", "the book holds no text")
        for number, (heading, paragraphs) in enumerate(sections, 1):
            tally.read(sum(len(paragraph.encode("utf-8", "surrogatepass")) for paragraph in paragraphs))
            title = book.title or name
            yield Document(
                id=f"{self.kind}/{split.name}/{number}",
                source=self.kind,
                title=f"{title}: {heading}" if heading else title,
                paragraphs=tuple(paragraphs),
            )


def decode(data: bytes, tally: Tally) -> str | None:
    """The text of a file: UTF-8, or UTF-16 with its mark, else Windows-1252 (counted); None for what is no text."""
    if not data.strip():
        tally.quarantine("empty_file", "the file is empty")
        return None
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            try:
                return data.decode(encoding)
            except UnicodeDecodeError as error:
                tally.quarantine(
                    "bad_encoding", f"the file's mark says {encoding}, byte {error.start:,} does not", offset=error.start
                )
                return None
    if b"\0" in data:
        offset = data.index(b"\0")
        tally.quarantine("binary", f"the file holds a NUL at byte {offset:,} and is no text", offset=offset)
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        tally.counters["encoding/windows-1252"] += 1
        return data.decode("cp1252", "replace")


def merged(sections: list[tuple[str, list[str]]]) -> list[tuple[str, list[str]]]:
    """Sections of a sensible length: short ones joined with the one after them, long ones cut at paragraph borders."""
    joined: list[tuple[str, list[str]]] = []
    heading, waiting = "", list[str]()
    for name, paragraphs in sections:
        heading = heading or name if not paragraphs else name
        waiting = waiting + paragraphs
        if sum(map(len, waiting)) >= SHORTEST_CHAPTER:
            joined.append((heading, waiting))
            heading, waiting = "", []
    if waiting and joined:
        joined[-1][1].extend(waiting)
    elif waiting:
        joined.append((heading, waiting))
    return [(name, piece) for name, paragraphs in joined for piece in pieces(paragraphs)]


def pieces(paragraphs: list[str]) -> list[list[str]]:
    """A chapter as it is, or, if it is longer than LONGEST_CHAPTER, in equal pieces of whole paragraphs."""
    length = sum(map(len, paragraphs))
    if length <= LONGEST_CHAPTER:
        return [paragraphs]
    count = round(length / PIECE)
    found: list[list[str]] = [[] for _ in range(count)]
    passed = 0
    for paragraph in paragraphs:
        found[min(count - 1, (passed + len(paragraph) // 2) * count // length)].append(paragraph)
        passed += len(paragraph)
    return [piece for piece in found if piece]


reader = BooksReader()
