"""Source `html`: pages that are rendered already, in dumps of Wikimedia Enterprise, in archives and in folders.

A dump of Wikimedia Enterprise (`enwiki_namespace_0.tar.gz`, `…-ENTERPRISE-HTML.json.tar.gz`, `.ndjson`) has an article a line, as MediaWiki shows
it, all its templates written out. Other archives hold a page a file. Pages of either kind are read by the rules of source `wikipedia`; of
sites that are no wiki it takes `<main>` or `<article>`, and for crawled pages source `warc` has rules of their own.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import orjson

from pipeline.corpus.document import Document, mended
from pipeline.corpus.provenance import wiki
from pipeline.corpus.readers.base import FileReader, Slice, Tally
from pipeline.corpus.readers.byte_source import ByteSource, Damaged
from pipeline.corpus.readers.html import archive, zipped
from pipeline.corpus.readers.lines import Line, read_lines
from pipeline.corpus.readers.recognized import HEAD_BYTES, is_for, kind_of
from pipeline.corpus.readers.unpack import as_utf8, peek
from pipeline.corpus.readers.web.characters import decoded
from pipeline.corpus.readers.wikipedia.dump import WikipediaOptions, check_wiki
from pipeline.corpus.readers.wikipedia.sections import lowered

if TYPE_CHECKING:
    from pipeline.corpus.readers.html.articles import Article
    from pipeline.corpus.readers.html.page import Rendered

PACKED = ("", ".gz", ".bz2", ".xz", ".zst")
_LINES = (".ndjson", ".jsonl", ".json")
_PAGES = (".html", ".htm", ".xhtml")
_CHUNK = 1 << 20


class HtmlReader(FileReader):
    """Documents `html/<relative file name>[/<id of the article, or name in the archive>]`."""

    kind = "html"
    options = WikipediaOptions
    patterns = (
        *(f"*{ending}{packed}" for ending in (".html", ".htm", ".xhtml", ".ndjson") for packed in PACKED),
        *(f"*.tar{packed}" for packed in PACKED),
        "*.tgz",
        "*.zip",
    )

    def cut(self, file_slice: Slice) -> list[Slice]:
        return archive.cut(file_slice)

    def read(self, file_slice: Slice, options: WikipediaOptions, tally: Tally) -> Iterator[Document]:
        """The articles of a file, or of a slice of it; a line that cannot be read is told by its number."""
        source = archive.Packed(file_slice)
        try:
            reading = _Reading(file_slice, options, tally, source)
            yield from reading.documents()
        finally:
            source.close()
        if not reading.found and not tally.unreadable and file_slice.span is None:
            tally.quarantine("empty_file", "the file holds no page")


class _Reading:
    """One slice being read. Attributes: found: whether it holds any page, read or not."""

    def __init__(self, file_slice: Slice, options: WikipediaOptions, tally: Tally, source: archive.Packed) -> None:
        self._slice, self._options, self._tally, self._source = file_slice, options, tally, source
        self._ways: dict[str, Rendered] = {}  # by language
        self._disambiguation = lowered(options.disambiguation_templates)
        self._known = False  # that the records are articles
        self._told = False  # of which wiki it is a dump
        self.found = False

    def documents(self) -> Iterator[Document]:
        head, whole = peek(as_utf8(self._source), HEAD_BYTES)
        try:
            if archive.is_tar(head):
                yield from self._archive(whole)
            elif zipped.is_zip(head):
                yield from self._zip()
            elif not head.strip() or not is_for("html", head, self._tally):
                self._empty(whole)
            elif kind_of(head)[0] != "an HTML page" and head.lstrip()[:1] in (b"{", b"["):
                yield from self._lines(whole, "")
            else:
                yield from self._page(whole, "", self._slice.size)
        except Damaged as error:
            self.damaged(error.reason, str(error), offset=error.offset)

    def damaged(self, reason: str, sentence: str, *, offset: int = 0) -> None:
        """Damage outside of the slice is told by whoever reads it there."""
        if not self._source.place:
            self._tally.damaged(reason, sentence, offset=offset)

    def _empty(self, source: ByteSource) -> None:
        source.read(1)  # tells of damage

    def _archive(self, source: ByteSource) -> Iterator[Document]:
        for name, size, content in archive.members(source):
            if self._source.place > 0:
                return
            yield from self._member(name, size, content)

    def _zip(self) -> Iterator[Document]:
        for name, size, content in zipped.members(*self._source.file()):
            try:
                yield from self._member(name, size, content)
            except Damaged as error:  # of this member alone
                self.damaged(error.reason, str(error), offset=error.offset)

    def _member(self, name: str, size: int, content: ByteSource) -> Iterator[Document]:
        lower = name.lower()
        if posixpath.basename(name).startswith("."):
            return
        if lower.endswith(_LINES):
            yield from self._lines(content, name)
        elif lower.endswith(_PAGES) and not self._source.place:
            yield from self._page(content, name, size)

    def _lines(self, source: ByteSource, name: str) -> Iterator[Document]:
        """The articles of a file with one a line."""
        for number, line in enumerate(read_lines(source, self, self._options.maximum_document_bytes), 1):
            place = self._source.place
            if place > 0:
                return
            if place < 0:
                continue
            self.found = True
            if line.data is None or line.data.strip():
                yield from self._record(line, number, name)
            if not self._known and self._tally.counters["quarantined/not_html"]:
                return

    def _record(self, line: Line, number: int, name: str) -> Iterator[Document]:
        from pipeline.corpus.readers.html import articles

        where = f"line {number:,}" + (f" of {name}" if name else "")
        if line.data is None:
            self._tally.read(line.size)
            self._tally.drop("too_long")
            told = f"{where} has {line.size:,} bytes and was left out"
            self._tally.quarantine("long_line", told, offset=line.offset, inner=name)
            return
        try:
            record = orjson.loads(line.data)
            if not isinstance(record, dict):
                raise ValueError(f"a {type(record).__name__} and no object")
        except ValueError as error:
            told = f"{where} is no JSON object ({str(error).rstrip('.')}); write an article a line (jq -c)"
            self._tally.quarantine("bad_json", told, offset=line.offset, inner=name)
            return
        if not self._known and "article_body" not in record:
            told = f"{where} has no article_body but {', '.join(list(record)[:12])}, so the file is no dump of Wikimedia Enterprise"
            self._tally.damaged("not_html", told, inner=name, remedy="name it as source jsonl")
            return
        self._known = True
        try:
            article = articles.of_record(record)
        except articles.NoArticle as error:
            self._tally.quarantine("no_html", f"{where} {error}", offset=line.offset, inner=name)
            return
        yield from self._article(article)

    def _page(self, source: ByteSource, name: str, size: int) -> Iterator[Document]:
        """A file that is a page."""
        self.found = True
        from pipeline.corpus.readers.html import articles

        limit = self._options.maximum_document_bytes
        data = bytearray()
        while len(data) <= limit and (piece := source.read(_CHUNK)):
            data += piece
        if len(data) > limit:
            self._tally.read(max(size, len(data)))
            self._tally.drop("too_long")
            return
        text = decoded(bytes(data), html=True)
        if "<" not in text:
            self._tally.quarantine("bad_html", "the page holds no element", inner=name)
            return
        self._tally.read(len(data))
        root = self._parsed(text)
        if root is not None:
            yield from self._document(articles.of_page(text, root), name, root)

    def _article(self, article: Article) -> Iterator[Document]:
        """A record that is an article."""
        check_wiki(self._slice.path, article.wiki, article.url, self._options)
        if article.wiki and not self._told:
            self._tally.found(wiki(article.wiki, article.url, self._slice.name))
            self._told = True
        self._tally.read(len(article.html.encode("utf-8", "surrogatepass")))
        root = self._parsed(mended(article.html))
        if root is not None:
            yield from self._document(article, article.id, root)

    def _parsed(self, text: str) -> Any:
        """The root of a page; None, with the page dropped, where there is none."""
        from pipeline.corpus.readers.html.page import TooDeep, parse

        try:
            root = parse(text)
        except TooDeep:
            self._tally.drop("too_deep")
            return None
        if root is None:
            self._tally.drop("empty")
        return root

    def _document(self, article: Article, name: str, root: Any) -> Iterator[Document]:
        from pipeline.corpus.readers.html import articles, page

        reason = articles.reason(article, root, self._disambiguation)
        if reason is not None:
            self._tally.drop(reason)
            return
        way = self._way(article.language)
        extracted = way.extract(page.content(root))
        for line_reason, count in extracted.dropped.items():
            self._tally.drop_lines(line_reason, count)
        yield Document(
            id="/".join(filter(None, (self._slice.kind, self._slice.name, name))),
            source=self._slice.kind,
            title=article.title,
            paragraphs=tuple(extracted.paragraphs),
            language=way.language,
            url=article.url,
            licence=article.licence,
            infobox=tuple(extracted.infobox),
        )

    def _way(self, language: str) -> Rendered:
        """How pages of this language are read."""
        from pipeline.corpus.readers.html.page import Rendered

        if language not in self._ways:
            options = self._options
            self._ways[language] = Rendered(
                options.sections_to_drop(language),
                lowered(options.kept_sections),
                language=language or options.fallback_language,
                formulas=options.math,
                kept_tables=options.tables,
                infoboxes=options.infobox == "metadata",
            )
        return self._ways[language]


reader = HtmlReader()
