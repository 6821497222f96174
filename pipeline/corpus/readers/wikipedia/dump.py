"""Source `wikipedia`: the articles of a MediaWiki XML dump (`pages-articles`, plain or as .bz2, .gz, .xz, .zst, .7z), in any language.

Redirects, pages of other namespaces, disambiguation pages and pages of another content model are dropped by name. Their marks are the dump's
own (`<redirect>`, `<ns>`, `<siteinfo>`), and for old dumps those in title and text. A multistream dump with its index beside it is read by as
many workers as there are; the documents are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.core import storage
from pipeline.corpus.document import Document
from pipeline.corpus.readers.base import FileReader, Settings, Split, Tally
from pipeline.corpus.readers.unpack import as_utf8, open_source
from pipeline.corpus.readers.wikipedia import multistream

if TYPE_CHECKING:
    from pipeline.corpus.readers.wikipedia.mediawiki_xml import Page, Site
    from pipeline.corpus.readers.wikipedia.wikitext import Markup


class WikipediaReader(FileReader):
    """Documents `wikipedia/<file name>/<page id>`."""

    kind = "wikipedia"
    patterns = ("*.xml", "*.xml.bz2", "*.xml.gz", "*.xml.xz", "*.xml.zst", "*.xml.7z", "*.xml-p*.bz2", "*.xml-p*.7z")

    def parts(self, split: Split) -> list[Split]:
        return multistream.parts(split)

    def read(self, split: Split, settings: Settings, tally: Tally) -> Iterator[Document]:
        """The articles; a page that cannot be read is told by its byte in the unpacked XML, a stream by its byte in the file."""
        from pipeline.corpus.readers.wikipedia.mediawiki_xml import Dump
        from pipeline.corpus.readers.wikipedia.wikitext import Markup

        first = split.part is None or split.part[0] == 0
        last = split.part is None or split.part[1] >= int(storage.stat(split.path)["size"] or 0)
        site = None if first else _site(split, settings)
        source = open_source(split.path, split.part)
        markup: Markup | None = None
        try:
            dump = Dump(
                as_utf8(source) if first else source, tally, settings.maximum_document_bytes, fragment=not first, last=last
            )
            for page in dump.pages():
                if markup is None:
                    markup = Markup((site or dump.site).names, settings.dropped_sections, settings.kept_sections)
                tally.read(len(page.text.encode("utf-8", "surrogatepass")))
                reason = _reason(page, markup, settings)
                if reason is not None:
                    tally.drop(reason)
                    continue
                extracted = markup.extract(page.text)
                for line_reason, count in extracted.dropped.items():
                    tally.drop_lines(line_reason, count)
                yield Document(
                    id=f"{self.kind}/{split.name}/{page.id.strip()}",
                    source=self.kind,
                    title=page.title,
                    paragraphs=tuple(extracted.paragraphs),
                )
        finally:
            source.close()
        if not dump.count and not tally.rejected and split.part is None:
            tally.quarantine("empty_dump", "the dump holds no page")


def _site(split: Split, settings: Settings) -> Site:
    """`<siteinfo>` of a dump of which only a part is read, from the dump's beginning."""
    from pipeline.corpus.readers.wikipedia.mediawiki_xml import Dump

    source = open_source(split.path)
    try:
        tally = Tally(split=split, stop=False)  # what is wrong here is told by the part that holds the dump's beginning
        dump = Dump(as_utf8(source), tally, settings.maximum_document_bytes)
        next(dump.pages(), None)
        return dump.site
    finally:
        source.close()


def _reason(page: Page, markup: Markup, settings: Settings) -> str | None:
    """Why the page is no article."""
    from pipeline.corpus.readers.wikipedia import wiki_words

    if page.redirect or wiki_words.is_redirect(page.text):
        return "redirect"
    if page.ns.strip() not in ("", "0") or (not page.ns and markup.is_namespaced(page.title)):
        return "namespace"
    if page.model.strip() not in ("", "wikitext"):
        return "not_wikitext"
    if page.too_long:
        return "too_long"
    if wiki_words.names_meanings(page.title) or wiki_words.lists_meanings(page.text, settings.disambiguation_templates):
        return "disambiguation"
    return None


reader = WikipediaReader()
