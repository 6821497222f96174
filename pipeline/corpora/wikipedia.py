"""Source `wikipedia`: the articles of a MediaWiki XML dump (`pages-articles`, plain or as .bz2, .gz, .xz).

The XML is read as a stream by expat, a page at a time, in flat memory. A document type, and with it every entity
of a dump's own, is refused: a dump has none, an attack has. Redirects, pages of other namespaces, disambiguation
pages and pages of another content model are dropped by name; their marks are the dump's own (`<redirect>`, `<ns>`,
`<siteinfo>`), for old dumps those in title and text. Of a page with several revisions the last counts.
"""

from __future__ import annotations

import re
import xml.parsers.expat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeline.corpora.reader import DAMAGE, MAXIMUM_DOCUMENT_BYTES, FileReader, Settings, Split, Tally, open_unpacked
from pipeline.text.document import Document

if TYPE_CHECKING:
    from pipeline.corpora import wikitext

_CHUNK = 1 << 18
_TEXTS = {"title", "ns", "id", "model", "text"}
_REDIRECT = re.compile(
    r"\s*#\s*(?:redirect|weiterleitung|redirection|redirección|rinvia|doorverwijzing|patrz)\b", re.IGNORECASE
)
_DISAMBIGUATION = re.compile(
    r"\{\{\s*(?:template:)?\s*(?:(?:[\w ]*[ _-])?(?:dis(?:ambig(?:uation)?)?|dab)(?:[ _-](?:cleanup|page))?|hndis|geodis|mathdab|"
    r"numberdis|roaddis|schooldis|hospitaldis|airport[ _]disambig[\w ]*|letter-number[\w ]*|set[ _]index(?:[ _]article)?|surname|"
    r"given[ _]name|begriffsklärung|homonymie|desambiguación)\s*(?=[|}])",
    re.IGNORECASE,
)


@dataclass(slots=True)
class _Page:
    title: str = ""
    ns: str = ""
    id: str = ""
    model: str = ""
    text: str = ""
    redirect: bool = False
    offset: int = 0
    too_long: bool = False


class _Refused(Exception):
    """The XML holds what no dump holds."""


@dataclass(slots=True)
class _Parser:
    """Feeds pages to `pages` as their elements close."""

    pages: list[_Page] = field(default_factory=list)
    names: dict[int, set[str]] = field(default_factory=dict)  # namespaces by key, in lower case
    count: int = 0
    _path: list[str] = field(default_factory=list)
    _page: _Page | None = None
    _pieces: list[str] | None = None
    _length: int = 0
    _key: int = 0
    _expat: xml.parsers.expat.XMLParserType = field(default_factory=xml.parsers.expat.ParserCreate)

    def __post_init__(self) -> None:
        parser = self._expat
        parser.buffer_text = True
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._text
        parser.StartDoctypeDeclHandler = self._refuse

    def feed(self, data: bytes, final: bool = False) -> None:
        self._expat.Parse(data, final)

    @property
    def offset(self) -> int:
        return max(0, self._expat.CurrentByteIndex)

    def _refuse(self, name: str, *_: object) -> None:
        raise _Refused(f"it declares a document type ({name}), which dumps never do")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        if name == "page":
            self._page = _Page(offset=self.offset)
            self.count += 1
        elif name == "namespace":
            self._key = int(attributes["key"]) if re.fullmatch(r"-?\d+", attributes.get("key", "")) else 0
            self._pieces, self._length = [], 0
        elif name == "redirect" and self._page is not None:
            self._page.redirect = True
        elif name in _TEXTS and self._page is not None:
            self._pieces, self._length = [], 0

    def _text(self, data: str) -> None:
        if self._pieces is None:
            return
        self._length += len(data)
        if self._length <= MAXIMUM_DOCUMENT_BYTES:
            self._pieces.append(data)

    def _end(self, name: str) -> None:
        self._path.pop()
        pieces, self._pieces = self._pieces, None
        page = self._page
        if name == "page" and page is not None:
            self.pages.append(page)
            self._page = None
        elif pieces is None:
            return
        elif name == "namespace":
            self.names.setdefault(self._key, set()).add("".join(pieces).strip().lower())
        elif page is not None and not (name == "id" and self._path[-1:] != ["page"]):  # revisions have an id of their own
            setattr(page, name, "".join(pieces))
            page.too_long |= self._length > MAXIMUM_DOCUMENT_BYTES


class WikipediaReader(FileReader):
    """Documents `wikipedia/<file name>/<page id>`."""

    kind = "wikipedia"
    patterns = ("*.xml", "*.xml.bz2", "*.xml.gz", "*.xml.xz", "*.xml-p*.bz2")

    def read(self, split: Split, settings: Settings, tally: Tally) -> Iterator[Document]:
        """The articles; a truncated or damaged dump is told by the byte of the unpacked XML where it ends."""
        from pipeline.corpora import wikitext

        parser = _Parser()
        markup: wikitext.Markup | None = None
        with open_unpacked(split.path) as stream:
            more = True
            while more:
                try:
                    data = stream.read(_CHUNK)
                    more = bool(data)
                    if more or parser.offset or parser.count:
                        parser.feed(data, final=not more)
                except (xml.parsers.expat.ExpatError, _Refused, *DAMAGE) as error:
                    name = "truncated" if isinstance(error, EOFError) or "no element found" in str(error) else "damaged"
                    sentence = f"the dump is {name} at byte {parser.offset:,} of its XML ({str(error).rstrip('.')})"
                    tally.damaged(name, sentence, offset=parser.offset)
                    more = False
                pages, parser.pages = parser.pages, []
                for page in pages:
                    if markup is None:  # the namespaces stand before the first page
                        markup = wikitext.Markup(parser.names, settings.dropped_sections)
                    tally.read(len(page.text.encode("utf-8", "surrogatepass")))
                    reason = _reason(page, markup)
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
        if not parser.count and not tally.rejected:
            tally.quarantine("empty_dump", "the dump holds no page")


def _reason(page: _Page, markup: wikitext.Markup) -> str | None:
    """Why the page is no article."""
    if page.redirect or _REDIRECT.match(page.text[:100]):
        return "redirect"
    if page.ns.strip() not in ("", "0") or (not page.ns and markup.is_namespaced(page.title)):
        return "namespace"
    if page.model.strip() not in ("", "wikitext"):
        return "not_wikitext"
    if page.too_long:
        return "too_long"
    if page.title.endswith("(disambiguation)") or _DISAMBIGUATION.search(page.text):
        return "disambiguation"
    return None


reader = WikipediaReader()
