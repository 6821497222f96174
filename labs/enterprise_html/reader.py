"""Source `html`: rendered pages in Wikimedia Enterprise dumps, archives and directories.

A Wikimedia Enterprise dump (`enwiki_namespace_0.tar.gz`, `…-ENTERPRISE-HTML.json.tar.gz`,
`.ndjson`) has one article per line, as MediaWiki renders it, with templates expanded. Other
archives have a page per file. Both are read by the rules of source `wikipedia`. For other sites the
text is `<main>` or `<article>`; crawled pages are better read by source `warc`.
"""

from __future__ import annotations

import contextlib
import posixpath
from typing import TYPE_CHECKING, Any

import orjson

from cloze.labs.enterprise_html import archive
from cloze.labs.enterprise_html.archive import zip_members
from cloze.pipeline.corpus.document import Document, escape_markup, replace_surrogates
from cloze.pipeline.corpus.provenance import wiki
from cloze.pipeline.corpus.readers.base import (
    IN_ARCHIVES,
    Documents,
    FileReader,
    ReadCounters,
    Slice,
    file_patterns,
    find_type,
    has_expected_type,
)
from cloze.pipeline.corpus.readers.encyclopedia import mediawiki_names
from cloze.pipeline.corpus.readers.encyclopedia.blocks import lowered
from cloze.pipeline.corpus.readers.encyclopedia.dump import WikipediaOptions, is_in, refuse_project
from cloze.pipeline.corpus.readers.plain_text import Line, read_lines
from cloze.pipeline.corpus.readers.streams import ByteSource, CorruptStreamError, as_utf8, peek
from cloze.pipeline.corpus.readers.web_text import decode_page

if TYPE_CHECKING:
    from cloze.labs.enterprise_html.archive import Article
    from cloze.labs.enterprise_html.page import HtmlExtractor

_LINES = (".ndjson", ".jsonl", ".json")
_PAGES = (".html", ".htm", ".xhtml")
_CHUNK = 1 << 20
_ZIP = b"PK\x03\x04"


class HtmlReader(FileReader):
    """Reader of documents `html/<relative file name>[/<article id, or name in the archive>]`."""

    kind = "html"
    options = WikipediaOptions
    patterns = (*file_patterns(".html", ".htm", ".xhtml", ".ndjson", ".tar"), "*.tgz", "*.zip")
    places_internal = True
    # most of a rendered article is markup, which packs well
    clean_shares = (
        *((ending, 0.3) for ending in (".gz", ".tgz", ".bz2", ".xz", ".zst", ".zip")),
        ("", 0.04),
    )

    def cut(self, file_slice: Slice) -> list[Slice]:
        return archive.cut(file_slice)

    def read(self, file_slice: Slice, options: WikipediaOptions, tally: ReadCounters) -> Documents:
        """Yield the articles of a file or slice; unreadable lines are recorded by number."""
        with contextlib.closing(archive.UnpackedStream(file_slice)) as source:
            reading = _Reading(file_slice, options, tally, source)
            yield from reading.documents()
        if not reading.has_pages and not tally.unreadable and file_slice.span is None:
            tally.quarantine("empty_file", "the file holds no page")


class _Reading:
    """State of reading one slice; `has_pages` is True once there is one."""

    def __init__(
        self,
        file_slice: Slice,
        options: WikipediaOptions,
        tally: ReadCounters,
        source: archive.UnpackedStream,
    ) -> None:
        self._slice, self._options, self._tally, self._source = file_slice, options, tally, source
        self._extractors: dict[tuple[str, str], HtmlExtractor] = {}
        self._disambiguation = lowered(options.disambiguation_templates)
        self._has_articles = False  # the records are known to be articles
        self._has_origin = False  # of the dump's wiki
        self.has_pages = False

    def documents(self) -> Documents:
        head, source = peek(as_utf8(self._source))
        try:
            if archive.IS_TAR.match(head):
                for name, size, content in archive.tar_members(source):
                    if self._source.side > 0:
                        return
                    yield from self._member(name, size, content)
            elif head.startswith(_ZIP):
                yield from self._zip()
            elif not head.strip() or not has_expected_type(head, self._tally):
                source.read(1)  # raises on damage
            elif find_type(head)[0] != "an HTML page" and head.lstrip()[:1] in (b"{", b"["):
                yield from self._lines(source, "")
            else:
                yield from self._page(source, "", self._slice.size)
        except CorruptStreamError as error:
            self._record_damage(error.reason, str(error), offset=error.offset)

    def _record_damage(self, reason: str, sentence: str, *, offset: int = 0) -> None:
        """Record damage inside the slice; readers of other slices record the rest."""
        if not self._source.side:
            self._tally.record_damage(reason, sentence, offset=offset)

    def _zip(self) -> Documents:
        for name, size, content in zip_members(*self._source.file()):
            try:
                yield from self._member(name, size, content)
            except CorruptStreamError as error:  # of this member alone
                self._record_damage(error.reason, str(error), offset=error.offset)

    def _member(self, name: str, size: int, content: ByteSource) -> Documents:
        is_hidden = posixpath.basename(name).startswith(".")
        lower_name = "" if is_hidden else name.lower()
        if lower_name.endswith(_LINES):
            yield from self._lines(content, name)
        elif self._source.side:  # another slice reads it
            return
        elif lower_name.endswith(_PAGES):
            yield from self._page(content, name, size)
        else:
            self._tally.counters[f"passed_over/{self._slice.kind}/{IN_ARCHIVES}"] += 1

    def _lines(self, source: ByteSource, name: str) -> Documents:
        """Yield the articles of a file with one per line."""
        lines = read_lines(source, self._options.maximum_document_bytes, self._record_damage)
        for number, line in enumerate(lines, 1):
            side = self._source.side
            if side > 0:
                return
            if side < 0:
                continue
            self.has_pages = True
            if line.data is None or line.data.strip():
                yield from self._record(line, number, name)
            if not self._has_articles and self._tally.counters["quarantined/not_html"]:
                return
            if self._tally.counters["quarantined/other_wiki"]:
                return

    def _record(self, line: Line, number: int, name: str) -> Documents:
        location = f"line {number:,}" + (f" of {name}" if name else "")
        if line.data is None:
            self._tally.drop_too_long(line.size, location, offset=line.offset, inner=name)
            return
        try:
            record = orjson.loads(line.data)
            if not isinstance(record, dict):
                raise ValueError(f"a {type(record).__name__} and no object")
        except ValueError as error:
            message = (
                f"{location} is no JSON object ({str(error).rstrip('.')}); write an article a line "
                f"(jq -c)"
            )
            self._tally.quarantine("bad_json", message, offset=line.offset, inner=name)
            return
        if not self._has_articles and "article_body" not in record:
            message = (
                f"{location} has no article_body but {', '.join(list(record)[:12])}, so the file "
                f"is no dump of Wikimedia Enterprise"
            )
            self._tally.record_damage(
                "not_html", message, inner=name, remedy="name it as source jsonl"
            )
            return
        self._has_articles = True
        try:
            article = archive.of_record(record)
        except archive.NotAnArticleError as error:
            self._tally.quarantine("no_html", f"{location} {error}", offset=line.offset, inner=name)
            return
        yield from self._article(article)

    def _page(self, source: ByteSource, name: str, size: int) -> Documents:
        """Yield the document of a file that is one page."""
        self.has_pages = True
        limit = self._options.maximum_document_bytes
        data = bytearray()
        while len(data) <= limit and (piece := source.read(_CHUNK)):
            data += piece
        if len(data) > limit:
            self._tally.read(max(size, len(data)))
            self._tally.drop("too_long")
            return
        text = decode_page(bytes(data), is_html=True)
        if "<" not in text:
            sentence = "the page holds no element" if text else "the page's encoding is not known"
            self._tally.quarantine("bad_html", sentence, inner=name)
            return
        self._tally.read(len(data))
        root = self._parsed(text)
        if root is not None:
            yield from self._document(archive.of_page(text, root), name, root)

    def _article(self, article: Article) -> Documents:
        """Yield the document of a Wikimedia Enterprise record."""
        project = mediawiki_names.project(article.wiki, article.url)
        if not self._options.namespaces_to_read(project):
            self._tally.quarantine("other_wiki", refuse_project(project, article.wiki))
            return
        if article.wiki and not self._has_origin:
            self._tally.set_origin(wiki(article.wiki, article.url, self._slice.name))
            self._has_origin = True
        self._tally.read_texts([article.html])
        root = self._parsed(replace_surrogates(article.html))
        if root is not None:
            yield from self._document(article, article.id, root)

    def _parsed(self, text: str) -> Any:
        """Return the root of a page; None, with the page dropped, if there is none."""
        from cloze.labs.enterprise_html.page import TooDeep, parse

        try:
            root = parse(escape_markup(text))
        except TooDeep:
            self._tally.drop("too_deep")
            return None
        if root is None:
            self._tally.drop("empty")
        return root

    def _document(self, article: Article, name: str, root: Any) -> Documents:
        from cloze.labs.enterprise_html import page

        project = mediawiki_names.project(article.wiki, article.url if article.wiki else "")
        namespaces = self._options.namespaces_to_read(project)
        is_read = is_in(namespaces, str(article.namespace), article.title)
        reason = archive.reason(article, root, self._disambiguation, is_read)
        if reason is not None:
            self._tally.drop(reason)
            return
        extractor = self._extractor(article.language, project)
        extracted = extractor.extract(page.content(root))
        for line_reason, count in extracted.dropped.items():
            self._tally.drop_lines(line_reason, count)
        yield Document(
            id="/".join(filter(None, (self._slice.kind, self._slice.name, name))),
            source=self._slice.kind,
            title=article.title,
            paragraphs=tuple(extracted.paragraphs),
            language=extractor.language,
            url=article.url,
            licence=article.licence,
            infobox=tuple(extracted.infobox),
            left_out=extracted.readable_texts() if self._options.keep_dropped else (),
        )

    def _extractor(self, language: str, project: str) -> HtmlExtractor:
        """Return the extractor for pages of this language and project."""
        from cloze.labs.enterprise_html.page import HtmlExtractor

        key = language, project
        if key not in self._extractors:
            self._extractors[key] = HtmlExtractor(**self._options.rules(*key))
        return self._extractors[key]


reader = HtmlReader()
