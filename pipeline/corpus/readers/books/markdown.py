"""Books in Markdown, parsed by markdown-it (CommonMark); headings of levels 1 and 2 open chapters.

Footnotes, images, tables, code and HTML are dropped. Indented text, which is code in CommonMark, is
kept if it reads as prose: many authors indent parts of a clause or nested lists. Text before the
first heading is kept if it reads as prose.
"""

from __future__ import annotations

import posixpath
import re
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.books.book_text import Book, Section, add_heading
from cloze.pipeline.corpus.readers.prose import reads_as_prose
from cloze.pipeline.corpus.readers.streams import FORMATS

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

NAMES = (".md", ".markdown")
_HEADING = re.compile(r"^ {0,3}#{1,6} +\S[^\n]{0,200}$", re.MULTILINE)
_FEWEST_HEADINGS = 2  # to detect Markdown without its file ending; one alone may be a number sign
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:(.+)$", re.MULTILINE)
_FOOTNOTE = re.compile(
    r"^ {0,3}\[\^[^\]\n]+\]:[^\n]*(?:\n(?:[ \t]+[^\n]*|[ \t]*(?=\n[ \t])))*", re.MULTILINE
)
_FOOTNOTE_MARK = re.compile(r"\[\^[^\[\]\n]+\]")
_ATTRIBUTES = re.compile(r" *\{[#.:][^{}\n]*\}")  # pandoc: # Title {#name .class}
_DROPPED = {"fence": "code", "code_block": "code", "html_block": "html"}
# Marks of code in an indented block: brackets, assignments, calls, prompts, options.
_CODE = re.compile(
    r"[{}<>=$_|`@]|\\\w|\w\(|\(\)|::|->|//|^[ \t]*(?:[#>%+-]{1,3} |(?:def|class|import|from|"
    r"return|if|for|while|else)\b)|(?:^|\s)(?:--\w|-\w(?:\s|$))",
    re.MULTILINE,
)
_WORD = re.compile(r"[(\"'„“‚‘«»]*[^\W\d_][^\W\d_'’.&/-]*[^\W_]?[.,:;!?)\"'“”‘’«»]*")
_TEXT_MARKS = re.compile(
    r"^[ \t]*(?:[*+-]|\w{1,4}[.)])[ \t]+\S|[^\W\d_][\"'”“’»)]*[.,:;!?](?:\s|$)|^[ \t]*[^\W\d_a-z]",
    re.MULTILINE,
)
_FEWEST_WORDS, _WORDS_SHARE = 3, 0.6
_DEEPEST = 12  # maximum nesting of indented blocks
_CHAPTER_TAGS = ("h1", "h2")


def is_markdown(name: str, text: str) -> bool:
    """Return True if the text is Markdown, by its file name or its headings."""
    stem, extension = posixpath.splitext(name.lower())
    return (stem if extension in FORMATS else stem + extension).endswith(NAMES) or (
        "#" in text and len(_HEADING.findall(text)) >= _FEWEST_HEADINGS
    )


def read(text: str, tally: ReadCounters) -> Book:
    """Return the book in `text`; omitted lines are counted as `dropped_lines`."""
    from markdown_it import MarkdownIt

    text = text.replace("\r\n", "\n").replace("\r", "\n")
    book = Book()
    if front_matter := _FRONT_MATTER.match(text):
        match = _FRONT_TITLE.search(front_matter[1])
        book.title = match[1].strip().strip("\"'") if match else ""
        tally.drop_lines("front_matter", front_matter[0].count("\n"))
        text = text[front_matter.end() :]
    if "[^" in text:
        text, footnote_count = _FOOTNOTE.subn("", text)
        tally.drop_lines("footnote", footnote_count)
        text = _FOOTNOTE_MARK.sub("", text)
    sections: list[Section] = [("", [])]
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    for tag, paragraph in _blocks(parser, text, tally):
        if tag not in _CHAPTER_TAGS:
            if tag == "p":
                sections[-1][1].append(paragraph)
        elif not book.title and not any(paragraphs for _, paragraphs in sections):
            book.title = paragraph
        else:
            add_heading(sections, paragraph)
    opening = [
        paragraph for paragraph in sections[0][1] if sections[0][0] or reads_as_prose(paragraph)
    ]
    tally.drop_lines("front_matter", len(sections[0][1]) - len(opening))
    book.sections = [(sections[0][0], opening), *sections[1:]]
    return book


def _blocks(
    parser: MarkdownIt, text: str, tally: ReadCounters, depth: int = 0
) -> Iterator[tuple[str, str]]:
    """Yield (h1 … h6, or p; text on one line) of the kept blocks, in order."""
    tag, in_table = "p", False
    for token in parser.parse(text):
        if token.type in ("table_open", "table_close"):
            in_table = token.type == "table_open"
            tally.drop_lines("table", int(in_table))
        elif token.type == "code_block" and depth < _DEEPEST and _reads_as_text(token.content):
            yield from _blocks(parser, textwrap.dedent(token.content), tally, depth + 1)
        elif token.type in _DROPPED:
            tally.drop_lines(_DROPPED[token.type])
        elif token.type == "heading_open":
            tag = token.tag
            tally.drop_lines("heading")
        elif token.type == "heading_close":
            tag = "p"
        elif token.type == "inline" and not in_table:
            text = " ".join(_inline(token.children or []).split())
            if tag != "p":
                text = _ATTRIBUTES.sub("", text)
            if re.search(r"[^\W\d_]", text):
                yield tag, text


def _reads_as_text(content: str) -> bool:
    """Return True if an indented block is prose and not code."""
    if _CODE.search(content) or not _TEXT_MARKS.search(content):
        return False
    words = [piece for piece in content.split() if piece not in ("*", "-", "+")]
    plain_count = sum(_WORD.fullmatch(word) is not None for word in words)
    return plain_count >= max(_FEWEST_WORDS, _WORDS_SHARE * len(words))


def _inline(tokens: list[Token]) -> str:
    """Return the text of a paragraph: links by their words, code unchanged, no images, no HTML."""
    pieces = []
    for token in tokens:
        if token.type in ("text", "code_inline"):
            pieces.append(token.content)
        elif token.type in ("softbreak", "hardbreak"):
            pieces.append("\n")
    return "".join(pieces)
