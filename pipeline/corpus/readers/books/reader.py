"""Source `books`: books as plain text, Markdown or EPUB. A document is a chapter.

Books are divided at chapter headings, so that random next passages come from elsewhere and chapters
can be held out. Text without chapters is divided at paragraphs about every 20,000 characters.
Licence, title page, table of contents and transcriber's notes are dropped. The modules of this
package read one format each.
"""

from __future__ import annotations

import posixpath

from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.readers.base import (
    Documents,
    FileReader,
    ReadCounters,
    Slice,
    file_patterns,
)
from cloze.pipeline.corpus.readers.books.book_text import Section
from cloze.pipeline.corpus.readers.plain_text import decode, read_whole

LONGEST_CHAPTER = 100_000  # characters; longer chapters are divided like text without chapters
PIECE = 20_000  # characters
# characters; shorter sections (an epigraph, a part's title page) join the next chapter
SHORTEST_CHAPTER = 400
_NO_BOOKS = frozenset("readme license licence copying notice changelog contributing".split())


class BooksReader(FileReader):
    """Reader of documents `books/<relative file name>/<number from 1>`, in reading order."""

    kind = "books"
    patterns = (*file_patterns(".txt", ".md", ".markdown"), "*.epub")

    def _is_readable(self, name: str) -> bool:
        """Return False also for readmes, licences and similar files next to books."""
        stem = posixpath.basename(name).lower().partition(".")[0]
        return stem not in _NO_BOOKS and super()._is_readable(name)

    def read(self, file_slice: Slice, options: CorpusOptions, tally: ReadCounters) -> Documents:
        """Yield the chapters of one book."""
        from cloze.pipeline.corpus.readers.books import book_text, markup

        if file_slice.path.lower().endswith(".epub"):
            book = markup.read_epub(file_slice.path, tally)
        else:
            data = read_whole(file_slice, options, tally)
            text = None if data is None else decode(data, tally)
            if text is None:
                return
            is_markdown = markup.is_markdown(file_slice.path, text)
            book = (markup.read_markdown if is_markdown else book_text.read)(text, tally)
        if book is None:
            return
        stem = posixpath.splitext(posixpath.basename(file_slice.name))[0]
        title = book.title or stem.replace("_", " ")
        sections = merge_sections(book.sections)
        if not sections and not tally.unreadable:
            tally.quarantine("empty_file", "the book holds no text")
        for number, (heading, paragraphs) in enumerate(sections, 1):
            tally.read_texts(paragraphs)
            yield Document(
                id=f"{self.kind}/{file_slice.name}/{number}",
                source=self.kind,
                title=f"{title}: {heading}" if heading else title,
                paragraphs=tuple(paragraphs),
            )


def merge_sections(sections: list[Section]) -> list[Section]:
    """Join short sections with the next one, and divide long ones at paragraphs."""
    chapters: list[Section] = []
    heading, pending = "", list[str]()
    for name, paragraphs in sections:
        heading = heading or name if not paragraphs else name
        pending = pending + paragraphs
        if sum(map(len, pending)) >= SHORTEST_CHAPTER:
            chapters.append((heading, pending))
            heading, pending = "", []
    if pending and chapters:
        chapters[-1][1].extend(pending)
    elif pending:
        chapters.append((heading, pending))
    return [(name, piece) for name, paragraphs in chapters for piece in _divide(paragraphs)]


def _divide(paragraphs: list[str]) -> list[list[str]]:
    """Return a chapter, or equal pieces of whole paragraphs if it exceeds LONGEST_CHAPTER."""
    length = sum(map(len, paragraphs))
    if length <= LONGEST_CHAPTER:
        return [paragraphs]
    count = round(length / PIECE)
    pieces: list[list[str]] = [[] for _ in range(count)]
    offset = 0
    for paragraph in paragraphs:
        pieces[min(count - 1, (offset + len(paragraph) // 2) * count // length)].append(paragraph)
        offset += len(paragraph)
    return [piece for piece in pieces if piece]


reader = BooksReader()
