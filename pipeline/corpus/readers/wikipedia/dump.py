"""Source `wikipedia`: the articles of a MediaWiki XML dump (`pages-articles`, plain or as .bz2, .gz, .xz, .zst, .7z), in any language.

Redirects, pages of other namespaces, disambiguation pages and pages of another content model are dropped by name. Their marks are the dump's
own (`<redirect>`, `<ns>`, `<siteinfo>`), and for old dumps those in title and text. A multistream dump with its index beside it is read by as
many workers as there are; the documents are the same.

The dump says which language it is in and which wiki it is of. Its own language chooses the rules, whatever `language` says of other
sources; a wiki whose pages are no running text is refused, unless `other_wikis` says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pipeline.core import storage
from pipeline.core.errors import DataError
from pipeline.corpus.document import Document
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.provenance import page_url, wiki
from pipeline.corpus.readers.base import FileReader, Slice, Tally
from pipeline.corpus.readers.recognized import HEAD_BYTES, is_for
from pipeline.corpus.readers.unpack import as_utf8, open_source, peek
from pipeline.corpus.readers.wikipedia import mediawiki_names, multistream
from pipeline.corpus.readers.wikipedia.sections import lowered

if TYPE_CHECKING:
    from pipeline.corpus.readers.wikipedia.mediawiki_xml import Page, Site
    from pipeline.corpus.readers.wikipedia.wikitext import Markup


class WikipediaOptions(CorpusOptions):
    """Which pages and sections of an encyclopedia are read, and what of them."""

    dropped_sections: tuple[str, ...] | None = None
    """Headings, in any case, of an encyclopedia's sections that are no running text; by default those known in the text's language."""

    kept_sections: tuple[str, ...] = ()
    """Where any are given, only these sections of an encyclopedia's articles are read; an empty name is the text before the first."""

    disambiguation_templates: tuple[str, ...] = ()
    """Names of a wiki's own templates that mark disambiguation pages."""

    tables: Literal["drop", "prose", "markdown"] = "drop"
    """What becomes of an encyclopedia's tables: `prose` writes a row as `Year: 1990; Population: 5,000.`, `markdown` as a row of Markdown."""

    infobox: Literal["drop", "metadata"] = "drop"
    """What becomes of an article's infoboxes: `metadata` keeps their names and values beside the text, in the column `infobox`."""

    math: Literal["drop", "latex"] = "drop"
    """What becomes of formulas that do not read as they stand: `drop` drops their sentences, `latex` keeps them as `$…$`."""

    other_wikis: Literal["refuse", "read"] = "refuse"
    """What becomes of a dump of a wiki that is no running text, such as a Wiktionary: refused, or read for what is left of it."""

    def sections_to_drop(self, language: str) -> frozenset[str]:
        """`dropped_sections` or their default for a dump in this language (empty: it does not say), in lower case."""
        if self.dropped_sections is None:
            known = language in mediawiki_names.APPENDED_SECTIONS
            return frozenset(mediawiki_names.appended_sections(*([language] if known else self.expected_languages)))
        return lowered(self.dropped_sections)


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

        first = file_slice.span is None or file_slice.span[0] == 0
        last = file_slice.span is None or file_slice.span[1] >= int(storage.stat(file_slice.path)["size"] or 0)
        site = None if first else _site(file_slice, options)
        source = open_source(file_slice.path, file_slice.span)
        markup: Markup | None = None
        disambiguation = lowered(options.disambiguation_templates)
        unpacked = source
        if first:
            head, unpacked = peek(as_utf8(source), HEAD_BYTES)
            if head.lstrip()[:1] != b"<" and not is_for(self.kind, head, tally):
                source.close()
                return
        try:
            dump = Dump(unpacked, tally, options.maximum_document_bytes, fragment=not first, last=last)
            for page in dump.pages():
                if markup is None:
                    site = site or dump.site
                    check_wiki(file_slice.path, site.dbname, site.base, options)
                    markup = _markup(site, options)
                    tally.found(wiki(site.dbname, site.base, file_slice.name))
                tally.read(len(page.text) if page.text.isascii() else len(page.text.encode("utf-8", "surrogatepass")))
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
                    language=markup.language,
                    url=page_url(site.base, page.title) if site else "",
                    infobox=tuple(extracted.infobox),
                )
        finally:
            source.close()
        if not dump.count and not tally.unreadable and file_slice.span is None:
            tally.quarantine("empty_dump", "the dump holds no page")


def _markup(site: Site, options: WikipediaOptions) -> Markup:
    from pipeline.corpus.readers.wikipedia.wikitext import Markup

    language = mediawiki_names.language_code(site.language)
    return Markup(
        site.names,
        options.sections_to_drop(language),
        lowered(options.kept_sections),
        language=language or options.fallback_language,
        formulas=options.math,
        kept_tables=options.tables,
        infoboxes=options.infobox == "metadata",
    )


def check_wiki(path: str, name: str, address: str, options: WikipediaOptions) -> None:
    """`DataError` if a dump is of a wiki whose pages hold little that is text to the readers of encyclopedias.

    Args:
        path: of the dump.
        name: of the wiki's database, such as `enwiktionary`; may be empty.
        address: of one of its pages.
        options: of the stage.
    """
    project = mediawiki_names.project(name, address)
    lost = mediawiki_names.NO_PROSE.get(project)
    if lost is not None and options.other_wikis == "refuse":
        raise DataError(
            f"{path} is a dump of {project.capitalize()} ({name or address}) and no encyclopedia: {lost}; "
            "take a dump of Wikipedia, or set corpus.other_wikis to read to take what is left"
        )


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
