"""Source `wikipedia`: the articles of a MediaWiki XML dump (`pages-articles`, plain or as .bz2, .gz, .xz, .zst, .7z), in any language.

Redirects, pages of other namespaces, disambiguation pages and pages of another content model are dropped by name. Their marks are the dump's
own (`<redirect>`, `<ns>`, `<siteinfo>`), and for old dumps those in title and text. A multistream dump with its index beside it is read by as
many workers as there are; the documents are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pipeline.core import storage
from pipeline.corpus.document import Document
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.readers.base import FileReader, Slice, Tally
from pipeline.corpus.readers.unpack import as_utf8, open_source
from pipeline.corpus.readers.wikipedia import mediawiki_names, multistream

if TYPE_CHECKING:
    from pipeline.corpus.readers.wikipedia.mediawiki_xml import Page, Site
    from pipeline.corpus.readers.wikipedia.wikitext import Markup


class WikipediaOptions(CorpusOptions):
    """Which pages and sections of an encyclopedia are read."""

    dropped_sections: tuple[str, ...] | None = None
    """Headings, in any case, of an encyclopedia's sections that are no running text; by default those known in the text's language."""

    kept_sections: tuple[str, ...] = ()
    """Where any are given, only these sections of an encyclopedia's articles are read; an empty name is the text before the first."""

    disambiguation_templates: tuple[str, ...] = ()
    """Names of a wiki's own templates that mark disambiguation pages."""

    def sections_to_drop(self) -> frozenset[str]:
        """`dropped_sections` or their default, in lower case."""
        if self.dropped_sections is None:
            return frozenset(mediawiki_names.appended_sections(*self.expected_languages))
        return _lowered(self.dropped_sections)


class WikipediaReader(FileReader):
    """Documents `wikipedia/<file name>/<page id>`."""

    kind = "wikipedia"
    options = WikipediaOptions
    patterns = ("*.xml", "*.xml.bz2", "*.xml.gz", "*.xml.xz", "*.xml.zst", "*.xml.7z", "*.xml-p*.bz2", "*.xml-p*.7z")

    def cut(self, file_slice: Slice) -> list[Slice]:
        return multistream.cut(file_slice)

    def read(self, file_slice: Slice, options: WikipediaOptions, tally: Tally) -> Iterator[Document]:
        """The articles; a page that cannot be read is told by its byte in the unpacked XML, a stream by its byte in the file."""
        from pipeline.corpus.readers.wikipedia.mediawiki_xml import Dump
        from pipeline.corpus.readers.wikipedia.wikitext import Markup

        first = file_slice.span is None or file_slice.span[0] == 0
        last = file_slice.span is None or file_slice.span[1] >= int(storage.stat(file_slice.path)["size"] or 0)
        site = None if first else _site(file_slice, options)
        source = open_source(file_slice.path, file_slice.span)
        markup: Markup | None = None
        disambiguation = _lowered(options.disambiguation_templates)
        try:
            dump = Dump(
                as_utf8(source) if first else source, tally, options.maximum_document_bytes, fragment=not first, last=last
            )
            for page in dump.pages():
                if markup is None:
                    markup = Markup((site or dump.site).names, options.sections_to_drop(), _lowered(options.kept_sections))
                tally.read(len(page.text.encode("utf-8", "surrogatepass")))
                reason = _reason(page, markup, disambiguation)
                if reason is not None:
                    tally.drop(reason)
                    continue
                extracted = markup.extract(page.text)
                for line_reason, count in extracted.dropped.items():
                    tally.drop_lines(line_reason, count)
                yield Document(
                    id=f"{self.kind}/{file_slice.name}/{page.id.strip()}",
                    source=self.kind,
                    title=page.title,
                    paragraphs=tuple(extracted.paragraphs),
                )
        finally:
            source.close()
        if not dump.count and not tally.unreadable and file_slice.span is None:
            tally.quarantine("empty_dump", "the dump holds no page")


def _site(file_slice: Slice, options: WikipediaOptions) -> Site:
    """`<siteinfo>` of a dump of which only a part is read, from the dump's beginning."""
    from pipeline.corpus.readers.wikipedia.mediawiki_xml import Dump

    source = open_source(file_slice.path)
    try:
        tally = Tally(slice=file_slice, stop=False)  # what is wrong here is told by the slice that holds the dump's beginning
        dump = Dump(as_utf8(source), tally, options.maximum_document_bytes)
        next(dump.pages(), None)
        return dump.site
    finally:
        source.close()


def _lowered(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in names)


def _reason(page: Page, markup: Markup, disambiguation: frozenset[str]) -> str | None:
    """Why the page is no article."""
    if page.redirect or mediawiki_names.is_redirect(page.text):
        return "redirect"
    if page.ns.strip() not in ("", "0") or (not page.ns and markup.is_namespaced(page.title)):
        return "namespace"
    if page.model.strip() not in ("", "wikitext"):
        return "not_wikitext"
    if page.too_long:
        return "too_long"
    if mediawiki_names.names_meanings(page.title) or mediawiki_names.lists_meanings(page.text, disambiguation):
        return "disambiguation"
    return None


reader = WikipediaReader()
