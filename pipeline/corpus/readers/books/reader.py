"""Source `books`: novels and other books as plain text, Markdown, EPUB or TEI XML. A document is a chapter.

So that a random next passage comes from somewhere else and that chapters can be held out, a book is cut at its chapter
headings, and a text without any at paragraph borders every 20,000 characters or so. What surrounds the book
(licence, title page, table of contents, transcriber's notes) goes. The layout of a text is in
pipeline/corpus/readers/books/book_text.py, the other formats are in files of their names.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from pipeline.corpus.document import Document
from pipeline.corpus.readers.base import FileReader, Slice, Tally
from pipeline.corpus.readers.books.beside import BesideOptions, without
from pipeline.corpus.readers.lines import decode
from pipeline.corpus.readers.plain_text import read_whole

LONGEST_CHAPTER = 100_000  # characters; what is longer is cut like a text without chapters
PIECE = 20_000  # characters of a piece
SHORTEST_CHAPTER = 400  # characters; what is shorter (an epigraph, a part's title page) goes with the chapter after it
_XML = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:\?xml\b|!DOCTYPE\s+TEI|TEI(?:\.2|Corpus)?\b)")
_HEAD_BYTES = 1024
_BESIDE_BOOKS = frozenset("readme license licence copying notice changelog contributing".split())


class BooksReader(FileReader):
    """Documents `books/<relative file name>/<number>`, numbered from 1 in reading order."""

    kind = "books"
    options = BesideOptions
    patterns = tuple(
        f"*{ending}{packed}"
        for ending in (".txt", ".xml", ".tei", ".md", ".markdown")
        for packed in ("", ".gz", ".bz2", ".xz", ".zst")
    ) + ("*.epub",)

    def _wanted(self, name: str) -> bool:
        """What lies beside books in many a folder, and is none, only where it is named itself."""
        return super()._wanted(name) and posixpath.basename(name).lower().partition(".")[0] not in _BESIDE_BOOKS

    def read(self, file_slice: Slice, options: BesideOptions, tally: Tally) -> Iterator[Document]:
        """The chapters of one book."""
        from pipeline.corpus.readers.books import book_text, epub, markdown, tei

        if file_slice.path.lower().endswith(".epub"):
            book = epub.read(file_slice.path, tally)
        else:
            data = read_whole(file_slice, options, tally)
            if data is None:
                return
            if _XML.match(data[:_HEAD_BYTES]) or b"<\0?\0x\0m\0l" in data[:_HEAD_BYTES]:
                book = tei.read(data, tally)
            else:
                text = decode(data, tally)
                if text is None:
                    return
                form = markdown if markdown.is_markdown(file_slice.path, text) else book_text
                book = form.read(text, tally)
        if book is None:
            return
        name = posixpath.splitext(posixpath.basename(file_slice.name))[0].replace("_", " ")
        sections = merged(without(book.sections, options, tally))
        if not sections and not tally.unreadable:
            tally.quarantine("empty_file", "the book holds no text")
        for number, (heading, paragraphs) in enumerate(sections, 1):
            tally.read(sum(len(paragraph.encode("utf-8", "surrogatepass")) for paragraph in paragraphs))
            title = book.title or name
            yield Document(
                id=f"{self.kind}/{file_slice.name}/{number}",
                source=self.kind,
                title=f"{title}: {heading}" if heading else title,
                paragraphs=tuple(paragraphs),
            )


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
