"""Books in Markdown and EPUB; headings of levels 1 and 2 open chapters.

markdown-it (CommonMark) parses Markdown. Footnotes, images, tables, code and HTML are dropped.
Indented text, which is code in CommonMark, is kept if it reads as prose: many authors indent parts
of a clause or nested lists. Text before the first heading is kept if it reads as prose.

An EPUB is an untrusted zip archive; its chapters are read in the order of the spine. Members are
read into memory one by one, under limits far above real books. Nothing is extracted to disk, so
names with `../` have no effect. XML entities are not resolved.
"""

from __future__ import annotations

import posixpath
import re
import stat
import textwrap
import urllib.parse
import zipfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lxml import etree, html

from cloze.core import storage
from cloze.core.errors import cause_of
from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.books.book_text import Book, Section, add_heading
from cloze.pipeline.corpus.readers.books.headings import LISTS, alternatives
from cloze.pipeline.corpus.readers.prose import reads_as_prose
from cloze.pipeline.corpus.readers.streams import FORMATS, ZIP_ERRORS

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_CHAPTER_LEVELS = ("h1", "h2")
_LETTER = re.compile(r"[^\W\d_]")

# Markdown.

_MARKDOWN_NAMES = (".md", ".markdown")
_MARKDOWN_HEADING = re.compile(r"^ {0,3}#{1,6} +\S[^\n]{0,200}$", re.MULTILINE)
_FEWEST_HEADINGS = 2  # to detect Markdown without its file ending; one alone may be a number sign
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:(.+)$", re.MULTILINE)
_FOOTNOTE = re.compile(
    r"^ {0,3}\[\^[^\]\n]+\]:[^\n]*(?:\n(?:[ \t]+[^\n]*|[ \t]*(?=\n[ \t])))*", re.MULTILINE
)
_FOOTNOTE_MARK = re.compile(r"\[\^[^\[\]\n]+\]")
_ATTRIBUTES = re.compile(r" *\{[#.:][^{}\n]*\}")  # pandoc: # Title {#name .class}
_MARKDOWN_DROPPED = {"fence": "code", "code_block": "code", "html_block": "html"}
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


def is_markdown(name: str, text: str) -> bool:
    """Return True if the text is Markdown, by its file name or its headings."""
    stem, extension = posixpath.splitext(name.lower())
    return (stem if extension in FORMATS else stem + extension).endswith(_MARKDOWN_NAMES) or (
        "#" in text and len(_MARKDOWN_HEADING.findall(text)) >= _FEWEST_HEADINGS
    )


def read_markdown(text: str, tally: ReadCounters) -> Book:
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
    for tag, paragraph in _markdown_blocks(parser, text, tally):
        if tag not in _CHAPTER_LEVELS:
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


def _markdown_blocks(
    parser: MarkdownIt, text: str, tally: ReadCounters, depth: int = 0
) -> Iterator[tuple[str, str]]:
    """Yield (h1 … h6, or p; text on one line) of the kept blocks, in order."""
    tag, in_table = "p", False
    for token in parser.parse(text):
        if token.type in ("table_open", "table_close"):
            in_table = token.type == "table_open"
            tally.drop_lines("table", int(in_table))
        elif token.type == "code_block" and depth < _DEEPEST and _reads_as_text(token.content):
            yield from _markdown_blocks(parser, textwrap.dedent(token.content), tally, depth + 1)
        elif token.type in _MARKDOWN_DROPPED:
            tally.drop_lines(_MARKDOWN_DROPPED[token.type])
        elif token.type == "heading_open":
            tag = token.tag
            tally.drop_lines("heading")
        elif token.type == "heading_close":
            tag = "p"
        elif token.type == "inline" and not in_table:
            text = " ".join(_inline(token.children or []).split())
            if tag != "p":
                text = _ATTRIBUTES.sub("", text)
            if _LETTER.search(text):
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
    return "".join(
        "\n" if token.type.endswith("break") else token.content
        for token in tokens
        if token.type in ("text", "code_inline", "softbreak", "hardbreak")
    )


# EPUB.

MOST_MEMBER_BYTES = 32 << 20  # of one chapter, decompressed
MOST_BYTES = 256 << 20  # of all chapters, decompressed

_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_BLOCKS, _IGNORED = frozenset(LISTS["epub blocks"]), frozenset(LISTS["epub ignored"])
_BOILERPLATE = re.compile(rf"\b(?:{alternatives('epub boilerplate')})\b")
_SKIPPED_DOCUMENTS = re.compile(rf"(?:{alternatives('epub apparatus')})\d*")
_ENCODING = re.compile(rb"""encoding=["']([\w.-]{1,40})["']""")


class _Broken(Exception):
    """The file is not a readable EPUB; the message says why."""


_ERRORS = (*ZIP_ERRORS, _Broken, etree.XMLSyntaxError)


def _cause(error: Exception) -> str:
    return str(error) if isinstance(error, _Broken) else cause_of(error)


def read_epub(path: str, tally: ReadCounters) -> Book | None:
    """Return the book at `path`, or None after recording the damage."""
    try:
        with storage.open_input(path) as handle, zipfile.ZipFile(handle) as archive:
            return _Epub(archive, tally).book()
    except _ERRORS as error:
        tally.record_damage("damaged_epub", f"the EPUB cannot be read ({_cause(error)})")
        return None


class _Epub:
    """An open archive."""

    def __init__(self, archive: zipfile.ZipFile, tally: ReadCounters) -> None:
        self._archive, self._tally, self._unpacked = archive, tally, 0

    def book(self) -> Book:
        container = self._xml("META-INF/container.xml")
        paths = [str(element.get("full-path", "")) for element in container.iter("{*}rootfile")]
        if not paths:
            raise _Broken("META-INF/container.xml names no package")
        package = self._xml(paths[0])
        titles = [
            element.text or ""
            for element in package.iter("{http://purl.org/dc/elements/1.1/}title")
        ]
        book = Book(title=" ".join((titles or [""])[0].split()))
        for name in self._spine(package, posixpath.dirname(paths[0])):
            try:
                book.sections += self._sections(name)
            except _ERRORS as error:
                message = f"the EPUB cannot be read in full ({_cause(error)})"
                self._tally.record_damage("damaged_epub", message, inner=name)
            if self._unpacked > MOST_BYTES:
                break
        book.sections = [section for section in book.sections if section[1]]
        return book

    def _spine(self, package: Any, base: str) -> Iterator[str]:
        """Yield the names of the documents in reading order, without navigation and covers."""
        items = {item.get("id"): item for item in package.iter("{*}item")}
        for reference in package.iter("{*}itemref"):
            item = items.get(reference.get("idref"))
            if (
                item is None
                or reference.get("linear") == "no"
                or "html" not in str(item.get("media-type", ""))
            ):
                continue
            name = urllib.parse.unquote(str(item.get("href", "")).partition("#")[0])
            stem = posixpath.splitext(posixpath.basename(name))[0].lower()
            is_navigation = "nav" in str(item.get("properties", "")).split()
            if is_navigation or _SKIPPED_DOCUMENTS.fullmatch(stem):
                continue
            yield posixpath.normpath(posixpath.join(base, name))

    def _member(self, name: str) -> bytes:
        try:
            entry = self._archive.getinfo(name)
        except KeyError as error:
            raise _Broken(f"its file {name!r} is missing") from error
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise _Broken(f"its file {name!r} is a link")
        with self._archive.open(entry) as member:
            data = member.read(MOST_MEMBER_BYTES + 1)
        self._unpacked += len(data)
        if len(data) > MOST_MEMBER_BYTES or self._unpacked > MOST_BYTES:
            raise _Broken(
                f"its file {name!r} unpacks to more than a book can hold ({len(data):,} bytes or "
                f"more)"
            )
        return data

    def _xml(self, name: str) -> Any:
        parser = etree.XMLParser(
            resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False
        )
        return etree.fromstring(self._member(name), parser)

    def _sections(self, name: str) -> list[Section]:
        """Return (heading, paragraphs) of one document, divided at headings of levels 1 and 2."""
        data = self._member(name)
        if not data.strip():
            return []
        match = _ENCODING.search(data[:200])
        parser = html.HTMLParser(encoding=match[1].decode() if match else "utf-8", no_network=True)
        try:
            root = html.document_fromstring(data, parser=parser)
        except (etree.ParserError, LookupError, ValueError) as error:
            self._tally.quarantine(
                "bad_html", f"the chapter cannot be read ({_cause(error)})", inner=name
            )
            return []
        body = root.find(".//body")
        sections: list[Section] = [("", [])]
        for tag, text in _blocks(root if body is None else body):
            if tag not in _HEADINGS:
                sections[-1][1].append(text)
                continue
            self._tally.drop_lines("heading")
            if tag in _CHAPTER_LEVELS or not sections[-1][1]:
                add_heading(sections, text)
        return sections


def _blocks(element: Any) -> Iterator[tuple[str, str]]:
    """Yield (tag, text on one line) of the paragraphs and headings below `element`, in order."""
    pieces: list[str] = []

    def flush(tag: str) -> Iterator[tuple[str, str]]:
        text = " ".join("".join(pieces).split())
        pieces.clear()
        if re.search(r"[^\W_]", text):
            yield tag, text

    def walk(node: Any, tag: str) -> Iterator[tuple[str, str]]:
        pieces.append(node.text or "")
        for child in node:
            child_tag = child.tag
            if not isinstance(child_tag, str):
                pass  # a comment
            elif child_tag == "br" or child_tag == "hr":
                pieces.append(" ")
            elif child_tag in _IGNORED or _is_boilerplate(child):
                pass
            elif child_tag in _BLOCKS or child_tag in _HEADINGS:
                yield from flush(tag)
                yield from walk(child, child_tag)
                yield from flush(child_tag)
            else:
                yield from walk(child, tag)
            pieces.append(child.tail or "")

    yield from walk(element, "body")
    yield from flush("body")


def _is_boilerplate(element: Any) -> bool:
    labels = " ".join(element.get(name, "") for name in ("class", "id", "epub:type"))
    return _BOILERPLATE.search(labels) is not None
