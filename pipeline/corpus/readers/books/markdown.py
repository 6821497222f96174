"""A book in Markdown, as markdown-it reads it (CommonMark): its headings of the first two levels open chapters.

Footnotes, images, tables, code and HTML are no running text. What stands before the first heading stays if it reads as prose.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.corpus.readers.base import Tally
from pipeline.corpus.readers.books.book_text import Book
from pipeline.corpus.readers.prose import reads_as_prose
from pipeline.corpus.readers.streams import FORMATS

if TYPE_CHECKING:
    from markdown_it.token import Token

NAMES = (".md", ".markdown")
_HEADING = re.compile(r"^ {0,3}#{1,6} +\S[^\n]{0,200}$", re.MULTILINE)
_FEWEST_HEADINGS = 2  # by which a text without the name is told: one alone may be a number sign
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title: *[\"']?(.+?)[\"']?[ \t]*$", re.MULTILINE)
_FOOTNOTE = re.compile(r"^ {0,3}\[\^[^\]\n]+\]:[^\n]*(?:\n(?:[ \t]+[^\n]*|[ \t]*(?=\n[ \t])))*", re.MULTILINE)
_FOOTNOTE_MARK = re.compile(r"\[\^[^\]\n]+\]")
_ATTRIBUTES = re.compile(r" *\{[#.:][^{}\n]*\}")  # pandoc's: # Title {#name .class}
_DROPPED = {"fence": "code", "code_block": "code", "html_block": "html"}
_CHAPTER_TAGS = ("h1", "h2")


def is_markdown(name: str, text: str) -> bool:
    """Whether the text is Markdown: by its file's name, or by its headings."""
    plain, packed = posixpath.splitext(name.lower())
    return (plain if packed in FORMATS else plain + packed).endswith(NAMES) or (
        "#" in text and len(_HEADING.findall(text)) >= _FEWEST_HEADINGS
    )


def read(text: str, tally: Tally) -> Book:
    """The book in `text`. What is left out is counted as `dropped_lines`."""
    from markdown_it import MarkdownIt

    text = text.replace("\r\n", "\n").replace("\r", "\n")
    book = Book()
    if front := _FRONT_MATTER.match(text):
        found = _FRONT_TITLE.search(front[1])
        book.title = found[1] if found else ""
        tally.drop_lines("front_matter", front[0].count("\n"))
        text = text[front.end() :]
    if "[^" in text:
        text, notes = _FOOTNOTE.subn("", text)
        tally.drop_lines("footnote", notes)
        text = _FOOTNOTE_MARK.sub("", text)
    sections: list[tuple[str, list[str]]] = [("", [])]
    for tag, line in _blocks(MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text), tally):
        if tag not in _CHAPTER_TAGS:
            if tag == "p":
                sections[-1][1].append(line)
        elif not book.title and not any(paragraphs for _, paragraphs in sections):
            book.title = line
        elif sections[-1][1]:
            sections.append((line, []))
        else:
            sections[-1] = (f"{sections[-1][0]} {line}".strip(), [])
    opening = [line for line in sections[0][1] if sections[0][0] or reads_as_prose(line)]
    tally.drop_lines("front_matter", len(sections[0][1]) - len(opening))
    book.sections = [(sections[0][0], opening), *sections[1:]]
    return book


def _blocks(tokens: list[Token], tally: Tally) -> Iterator[tuple[str, str]]:
    """(h1 … h6, or p, text on one line) of what stays, in order."""
    tag, table = "p", False
    for token in tokens:
        if token.type in ("table_open", "table_close"):
            table = token.type == "table_open"
            tally.drop_lines("table", int(table))
        elif token.type in _DROPPED:
            tally.drop_lines(_DROPPED[token.type])
        elif token.type == "heading_open":
            tag = token.tag
            tally.drop_lines("heading")
        elif token.type == "heading_close":
            tag = "p"
        elif token.type == "inline" and not table:
            text = " ".join(_inline(token.children or []).split())
            if tag != "p":
                text = _ATTRIBUTES.sub("", text)
            if re.search(r"[^\W\d_]", text):
                yield tag, text


def _inline(tokens: list[Token]) -> str:
    """The text of a paragraph: links by their words, code as it is, no images and no HTML."""
    pieces = []
    for token in tokens:
        if token.type in ("text", "code_inline"):
            pieces.append(token.content)
        elif token.type in ("softbreak", "hardbreak"):
            pieces.append("\n")
    return "".join(pieces)
