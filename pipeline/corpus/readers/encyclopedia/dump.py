"""Source `wikipedia`: articles of MediaWiki XML dumps (`pages-articles`, also compressed).

A multistream dump (`…-multistream.xml.bz2`) is a sequence of bzip2 streams: one with `<siteinfo>`,
many of a hundred pages each, one with the end. Its index (`…-multistream-index.txt.bz2`) gives the
byte offset of each page's stream. A slice is a run of whole streams. If the index is missing or
does not fit, the dump is read whole.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import posixpath
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from cloze.core import storage
from cloze.pipeline.corpus.document import Document, escape_markup
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.provenance import page_url, wiki
from cloze.pipeline.corpus.readers.base import (
    Documents,
    FileReader,
    ReadCounters,
    Slice,
    find_type,
    has_expected_type,
)
from cloze.pipeline.corpus.readers.encyclopedia import mediawiki_names
from cloze.pipeline.corpus.readers.encyclopedia.blocks import lowered
from cloze.pipeline.corpus.readers.streams import (
    ByteSource,
    CorruptStreamError,
    as_utf8,
    open_source,
    peek,
)

if TYPE_CHECKING:
    from cloze.pipeline.corpus.readers.encyclopedia.mediawiki_xml import Page, Site
    from cloze.pipeline.corpus.readers.encyclopedia.wikitext import WikitextParser


SLICE_BYTES = 32 << 20  # approximate compressed bytes per slice: half a minute on one core
_STREAM = re.compile(rb"BZh[1-9]1AY&SY")
_LINE = re.compile(rb"^(\d{1,19}):", re.MULTILINE)
_PROOFREAD = "proofread-page"  # Wikisource: a page of a book, whose header and footer are margins
_MARGINS = re.compile(r"<noinclude>.*?</noinclude>", re.DOTALL)
_log = logging.getLogger(__name__)


def index_name(path: str) -> str | None:
    """Return the path of the index of the dump at `path`, if it exists.

    `a-multistream.xml.bz2` has `a-multistream-index.txt.bz2`, `a-multistream7.xml-p5p9.bz2` has
    `a-multistream-index7.txt-p5p9.bz2`; both may be uncompressed.
    """
    directory, name = posixpath.split(path)
    if "multistream" not in name or not name.endswith(".bz2"):
        return None
    packed_name = name.replace("multistream", "multistream-index", 1).replace(".xml", ".txt", 1)
    for candidate in (packed_name, packed_name.removesuffix(".bz2")):
        index_path = posixpath.join(directory, candidate)
        if candidate != name and storage.exists(index_path):
            return index_path
    return None


def cut(file_slice: Slice) -> list[Slice]:
    """Divide a dump into slices of about SLICE_BYTES, if it is large and has an index."""
    if file_slice.size <= SLICE_BYTES:
        return [file_slice]
    index = index_name(file_slice.path)
    if index is None:
        return [file_slice]
    status = storage.stat(index)
    modification_time = str(status.get("mtime") or status.get("LastModified") or "")
    size = file_slice.size
    return file_slice.split(_borders(file_slice.path, index, size, SLICE_BYTES, modification_time))


@functools.lru_cache(maxsize=64)
def _borders(path: str, index: str, size: int, step: int, _changed: str) -> tuple[int, ...]:
    """Return the borders of slices: 0, starts of streams at least `step` apart, and the dump's end.

    Return (0, size) if the index does not fit the dump.
    """
    borders = [0]
    for offset in _offsets(index):
        if offset >= size:  # a truncated dump: the existing part is read in slices
            break
        if offset - borders[-1] >= step:
            borders.append(offset)
    if size - borders[-1] < step // 4 and len(borders) > 1:
        borders.pop()
    with storage.open_input(path) as handle:
        for border in borders:
            handle.seek(border)
            if not _STREAM.match(handle.read(10)):
                message = (
                    "%s does not fit %s: no stream begins at byte %d; one worker reads the dump"
                )
                _log.warning(message, index, path, border)
                return 0, size
    return *borders, size


def _offsets(index: str) -> Iterator[int]:
    """Yield the offsets in an index, once per run of lines; unreadable streams are skipped."""
    remainder, last_offset = b"", -1
    with contextlib.closing(open_source(index)) as source:
        while True:
            try:
                data = source.read(1 << 20)
            except CorruptStreamError:
                continue
            if not data:
                return
            complete_lines, newline, remainder = (remainder + data).rpartition(b"\n")
            for digits in dict.fromkeys(_LINE.findall(complete_lines + newline)):
                if int(digits) != last_offset:
                    last_offset = int(digits)
                    yield last_offset


class WikipediaOptions(CorpusOptions):
    """Options of the sources wikipedia and html: pages, sections and elements to read."""

    dropped_sections: tuple[str, ...] | None = None
    """wikipedia: heading of a section to drop. Repeatable. Default: a list by language."""

    kept_sections: tuple[str, ...] = ()
    """wikipedia: read only sections with this heading; '' is the lead. Repeatable. Default: all."""

    disambiguation_templates: tuple[str, ...] = ()
    """wikipedia: template that marks disambiguation pages. Repeatable."""

    infobox: Literal["drop", "metadata"] = "drop"
    """wikipedia: drop infoboxes, or keep them in the column infobox."""

    math: Literal["drop", "latex"] = "drop"
    """wikipedia: drop sentences with formulas that are not readable as text, or keep LaTeX."""

    namespaces: tuple[str, ...] = ()
    """wikipedia: number or name of a namespace to read, such as 0, Cookbook. Repeatable. Default:
    by project; none of Wiktionary, Commons and Wikidata."""

    def sections_to_drop(self, language: str) -> frozenset[str]:
        """Return the lower-case headings of sections to drop in this language (empty: unknown)."""
        if self.dropped_sections is None:
            is_known = language in mediawiki_names.APPENDED_SECTIONS
            languages = (language,) if is_known else self.expected_languages
            return mediawiki_names.appended_sections(*languages)
        return lowered(self.dropped_sections)

    def namespaces_to_read(self, project: str) -> frozenset[str]:
        """Return the numbers and lower-case names of the namespaces that are read of a project."""
        return lowered(self.namespaces or mediawiki_names.namespaces_of(project))

    def rules(self, language: str, project: str = "wikipedia") -> dict[str, Any]:
        """Return the fields of `ArticleRules` for pages in this language (empty: unknown)."""
        dropped = self.sections_to_drop(language)
        judged = mediawiki_names.PROSE_OR_LISTS if self.dropped_sections is None else frozenset()
        return {
            "dropped_sections": dropped - judged,
            # listings are no books
            "judged_sections": frozenset() if project == "wikivoyage" else dropped & judged,
            "kept_sections": lowered(self.kept_sections),
            "language": language or self.fallback_language,
            "formulas": self.math,
            "infoboxes": self.infobox == "metadata",
            "project": project,
        }


class WikipediaReader(FileReader):
    """Reader of documents `wikipedia/<file name>/<page id>`."""

    kind = "wikipedia"
    options = WikipediaOptions
    places_internal = True
    patterns = ("*.xml", "*.xml.bz2", "*.xml.gz", "*.xml.xz", "*.xml.zst", "*.xml-p*.bz2")

    def cut(self, file_slice: Slice) -> list[Slice]:
        return cut(file_slice)

    def read(self, file_slice: Slice, options: WikipediaOptions, tally: ReadCounters) -> Documents:
        """Yield the articles of a dump or slice.

        Unreadable pages are recorded by byte of the decompressed XML, streams by byte of the file.
        """
        from cloze.pipeline.corpus.readers.encyclopedia.mediawiki_xml import Dump
        from cloze.pipeline.corpus.readers.encyclopedia.wikitext import WikitextParser

        begin, end = file_slice.span or (0, None)
        is_last = end is None or end >= int(storage.stat(file_slice.path)["size"] or 0)
        site = _site(file_slice, options) if begin else None
        parser: WikitextParser | None = None
        disambiguation = lowered(options.disambiguation_templates)
        with contextlib.closing(open_source(file_slice.path, file_slice.span)) as source:
            unpacked: ByteSource = source
            if not begin:
                head, unpacked = peek(as_utf8(source))
                is_other = head.lstrip()[:1] != b"<" or find_type(head)[0] == "an HTML page"
                if is_other and not has_expected_type(head, tally):
                    return
            limit = options.maximum_document_bytes
            dump = Dump(unpacked, tally, limit, fragment=begin > 0, last=is_last)
            for page in dump.pages():
                if parser is None:
                    site = site or dump.site
                    project = mediawiki_names.project(site.dbname, site.base)
                    namespaces = options.namespaces_to_read(project)
                    if fault := _refusal(site, project, options):
                        if not begin:  # once a dump
                            tally.quarantine("other_wiki", fault)
                        return
                    language = mediawiki_names.language_code(site.language)
                    parser = WikitextParser(site.names, **options.rules(language, project))
                    tally.set_origin(wiki(site.dbname, site.base, file_slice.name))
                tally.read_texts([page.text])
                reason = _reason(page, parser, disambiguation, namespaces)
                if reason is not None:
                    tally.drop(reason)
                    continue
                text = page.text
                if page.model.strip() == _PROOFREAD:
                    text = _MARGINS.sub("", text)
                extracted = parser.extract(escape_markup(text))
                for line_reason, count in extracted.dropped.items():
                    tally.drop_lines(line_reason, count)
                yield Document(
                    id=f"{self.kind}/{file_slice.name}/{page.id.strip()}",
                    source=self.kind,
                    title=page.title,
                    paragraphs=tuple(extracted.paragraphs),
                    language=parser.language,
                    url=page_url(site.base, page.title) if site else "",
                    infobox=tuple(extracted.infobox),
                    left_out=extracted.readable_texts() if options.keep_dropped else (),
                )
        if not dump.count and not tally.unreadable and file_slice.span is None:
            tally.quarantine("empty_dump", "the dump holds no page")


def refuse_project(project: str, name: str) -> str:
    """Return why a wiki of a project without running text is not read."""
    return (
        f"it is a dump of {project.capitalize()} ({name}), hardly a sentence of whose pages is "
        f"running text; remove it, or set corpus.namespaces to 0 to read what there is"
    )


def _refusal(site: Site, project: str, options: WikipediaOptions) -> str:
    """Return why a dump is not read; empty if it is."""
    if not options.namespaces_to_read(project):
        return refuse_project(project, site.dbname or site.base)
    known = {name for names in site.names.values() for name in names if name}
    names = {name for name in lowered(options.namespaces) if not name.isdigit()}
    if known and (missing := sorted(names - known)):
        return (
            f"the dump has no namespace {missing[0]!r} (corpus.namespaces), but "
            f"{', '.join(sorted(known))}"
        )
    return ""


def _site(file_slice: Slice, options: WikipediaOptions) -> Site:
    """Return `<siteinfo>` from the beginning of a dump of which a slice is read."""
    from cloze.pipeline.corpus.readers.encyclopedia.mediawiki_xml import Dump

    with contextlib.closing(open_source(file_slice.path)) as source:
        # The reader of the first slice reports the problems found here.
        tally = ReadCounters(slice=file_slice, stop=False)
        dump = Dump(as_utf8(source), tally, options.maximum_document_bytes)
        next(dump.pages(), None)
        return dump.site


def is_in(namespaces: frozenset[str], key: str, title: str) -> bool:
    """Return True if a page is in one of the namespaces, by number or by the title's prefix."""
    return key in namespaces or title.partition(":")[0].strip().lower() in namespaces


def _reason(
    page: Page, markup: WikitextParser, disambiguation: frozenset[str], namespaces: frozenset[str]
) -> str | None:
    """Return why a page is not an article; None if it is one."""
    if page.redirect or mediawiki_names.is_redirect(page.text):
        return "redirect"
    key = page.ns.strip() or ("" if markup.is_namespaced(page.title) else "0")
    if not is_in(namespaces, key, page.title):
        return "namespace"
    if page.model.strip() not in ("", "wikitext", _PROOFREAD):
        return "not_wikitext"
    if page.too_long:
        return "too_long"
    if mediawiki_names.names_meanings(page.title) or mediawiki_names.lists_meanings(
        page.text, disambiguation
    ):
        return "disambiguation"
    return None


reader = WikipediaReader()
