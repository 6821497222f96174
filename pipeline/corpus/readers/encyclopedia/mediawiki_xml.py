"""Pages of a MediaWiki XML dump, one by one in bounded memory.

expat parses each `<page>` separately; the part before the first is read only for `<siteinfo>`.
Damage thus costs one page, and any run of pages can be read without those before it (slices of a
multistream dump). A page cannot declare entities, and a document type is refused: dumps have none,
only attacks do.
"""

from __future__ import annotations

import html
import re
import xml.parsers.expat
from collections.abc import Iterator
from dataclasses import dataclass, field

from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.streams import ByteSource, CorruptStreamError

_CHUNK = 1 << 18
# bzip2 gathers each block of 900 kB from all over 3.6 MB. Pages parsed in between push these out of
# the processor's cache, and a dump takes a third longer to unpack.
_BURST = 1 << 20
_TEXTS = frozenset({"title", "ns", "id", "model", "text"})
_OPEN = re.compile(rb"<page(?=[\s>])")
_BORDER = re.compile(rb"</page\s*>|<page(?=[\s>])")
_LONGEST_BORDER = 16
_LONGEST_HEADER = 4 << 20
_LONGEST_TOKEN = 4 << 20  # bytes of a tag; expat holds a token in memory
_DOCTYPE = re.compile(rb"<!DOCTYPE\s*([\w:.-]{0,40})", re.IGNORECASE)
_FIRST_TAG = re.compile(rb"<([A-Za-z][A-Za-z0-9:._-]{0,40})")
_ENCODING = re.compile(rb"""^\s*<\?xml[^>]{0,100}?encoding\s*=\s*["']([\w.:-]{1,40})["']""")
_ENCODINGS = (b"utf-8", b"utf8", b"utf-16", b"us-ascii", b"ascii")
_LANGUAGE = re.compile(r"""<mediawiki\b[^>]*\bxml:lang\s*=\s*["']([\w-]{1,20})["']""", re.ASCII)
_DBNAME, _BASE = re.compile("<dbname>([^<]*)<"), re.compile("<base>([^<]*)<")
_NAMESPACE = re.compile(r"""<namespace\b[^<>]*?\bkey\s*=\s*["'](-?\d{1,6})["'][^<>]*>([^<]*)""")


@dataclass(slots=True)
class Page:
    """A page of a dump; of several revisions the last."""

    title: str = ""  # title of the page
    ns: str = ""  # ns, id and model: as text; empty if missing
    id: str = ""
    model: str = ""
    text: str = ""
    redirect: bool = False  # the element `<redirect>` is present
    too_long: bool = False  # the text exceeds the limit; `text` is incomplete


@dataclass(slots=True)
class Site:
    """Content of `<siteinfo>`."""

    names: dict[int, set[str]] = field(default_factory=dict)  # lower-case namespace names by key
    language: str = ""  # language of the wiki
    dbname: str = ""  # database name
    base: str = ""  # URL of the main page


class _PageParser:
    """Incremental parser of one page; `has_failed` is True if the rest of it is skipped."""

    def __init__(self, limit: int) -> None:
        self.page, self.has_failed = Page(), False
        self._limit = limit
        self._path: list[str] = []
        self._pieces: list[str] | None = None
        self._length = 0
        self._fed = 0
        parser = self._expat = xml.parsers.expat.ParserCreate("utf-8")
        parser.buffer_text = True
        parser.buffer_size = 1 << 16
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._text

    def feed(self, data: bytes, final: bool) -> None:
        self._fed += len(data)
        self._expat.Parse(data, final)
        if self._fed - self._expat.CurrentByteIndex > _LONGEST_TOKEN:
            raise xml.parsers.expat.ExpatError("a tag has no end")

    @property
    def error_offset(self) -> int:
        return max(0, self._expat.ErrorByteIndex)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        if name in _TEXTS:
            self._pieces, self._length = [], 0
        elif name == "redirect":
            self.page.redirect = True

    def _text(self, data: str) -> None:
        if self._pieces is None:
            return
        self._length += len(data)
        if self._length <= self._limit:
            self._pieces.append(data)

    def _end(self, name: str) -> None:
        self._path.pop()
        if name not in _TEXTS:  # unescaped markup: its text belongs to the page
            return
        pieces, self._pieces = self._pieces, None
        # Revisions have an id, too.
        if pieces is None or (name == "id" and self._path != ["page"]):
            return
        setattr(self.page, name, "".join(pieces))
        if name == "text":
            self.page.too_long = self._length > self._limit


def read_site(header: bytes) -> Site:
    """Return the content of `<siteinfo>` in what precedes the first page."""
    text = header.decode("utf-8", "replace")
    language, dbname, base = (pattern.search(text) for pattern in (_LANGUAGE, _DBNAME, _BASE))
    site = Site(
        language=language[1].lower() if language else "",
        dbname=html.unescape(dbname[1]).strip() if dbname else "",
        base=html.unescape(base[1]).strip() if base else "",
    )
    for key, name in _NAMESPACE.findall(text):
        site.names.setdefault(int(key), set()).add(html.unescape(name).strip().lower())
    return site


class Dump:
    """Pages in a byte range of a dump.

    Args:
        source: decompressed UTF-8 without byte order mark.
        limit: maximum characters of a text.
        fragment: bool, True if `source` lacks the beginning of the dump.
        last: bool, True if `source` includes the end of the dump.
    """

    def __init__(
        self,
        source: ByteSource,
        tally: ReadCounters,
        limit: int,
        *,
        fragment: bool = False,
        last: bool = True,
    ) -> None:
        self._source, self._tally, self._limit = source, tally, limit
        self._has_end = last
        self._has_started = fragment
        # Buffered bytes, and their offset in the decompressed dump.
        self._buffer, self._offset = b"", 0
        self._is_refused = False
        self._has_gap = False  # bytes were lost since the last page
        self._open: _PageParser | None = None
        self._page_offset = 0
        self.site = Site()  # content of `<siteinfo>`, once the first page is read
        self.count = 0  # number of pages started

    def pages(self) -> Iterator[Page]:
        """Yield the readable pages; damage is recorded in the counters."""
        tail = b""
        for data in self._bursts():
            tail = (tail + data[-64:])[-64:]
            self._buffer = self._buffer + data if self._buffer else data
            if not self._has_started and not self._begin():
                if self._is_refused:
                    return
                continue
            yield from self._scan()
        yield from self._finish(tail)

    def _bursts(self) -> Iterator[bytes]:
        """Yield the bytes of the source in large pieces; after damage a page begins anew."""
        pieces: list[bytes] = []
        data, most = b"-", _CHUNK  # the first is small, for who wants only the first page
        while data:
            damage: CorruptStreamError | None = None
            try:
                data = self._source.read(_CHUNK)
                pieces.append(data)
            except CorruptStreamError as error:
                damage = error
            if damage or not data or sum(map(len, pieces)) >= most:
                yield b"".join(pieces)
                pieces, most = [], _BURST
            if damage:
                self._tally.record_damage(
                    damage.reason,
                    f"the dump is {_STATE[damage.reason]}: {damage}",
                    offset=damage.offset,
                )
                self._open, self._has_gap = None, True
                self._offset, self._buffer = self._offset + len(self._buffer), b""

    def _begin(self) -> bool:
        """Read what precedes the first page; return False if incomplete or refused."""
        match = _OPEN.search(self._buffer)
        if not match and len(self._buffer) < _LONGEST_HEADER:
            return False
        header = self._buffer[: match.start()] if match else self._buffer
        if fault := _header_fault(header):
            self._refuse(fault)
            return False
        self.site = read_site(header)
        self._has_started = True
        return True

    def _refuse(self, sentence: str, remedy: str = "get the file again") -> None:
        self._is_refused = True
        self._tally.record_damage("damaged", sentence, remedy=remedy)

    def _scan(self) -> Iterator[Page]:
        """Yield the pages that end in the buffer."""
        position, buffer = 0, self._buffer
        while True:
            if self._open is None:
                match = _OPEN.search(buffer, position)
                if not match:
                    position = max(position, len(buffer) - _LONGEST_BORDER)
                    break
                position = match.start()
                if len(buffer) - position <= _LONGEST_BORDER:
                    break
                self._open = _PageParser(self._limit)
                self._page_offset, self._has_gap = self._offset + position, False
                self.count += 1
                search_start = position + 5
            else:
                search_start = position
            match = _BORDER.search(buffer, search_start)
            if match is None:
                end = max(position, len(buffer) - _LONGEST_BORDER)
                if end > position:
                    self._feed(buffer[position:end])
                    position = end
                break
            end = match.end() if buffer[match.start() + 1] == 0x2F else match.start()  # a slash
            page = self._feed(buffer[position:end], final=True)
            position = end
            if page is not None:
                yield page
            self._open = None
        self._buffer = buffer[position:]
        self._offset += position

    def _feed(self, data: bytes, final: bool = False) -> Page | None:
        """Feed data to the open page; return the page when complete. After an error return None."""
        parser = self._open
        assert parser is not None
        if parser.has_failed:
            return None
        try:
            parser.feed(data, final)
        except xml.parsers.expat.ExpatError as error:
            offset = self._page_offset + parser.error_offset
            reason = "truncated" if "no element found" in str(error) else "damaged"
            parser.has_failed = True
            self._tally.record_damage(
                reason,
                f"the dump is {reason} at byte {offset:,} of its XML, in page {self.count:,} "
                f"({error})",
                offset=offset,
            )
            return None
        return parser.page if final else None

    def _finish(self, tail: bytes) -> Iterator[Page]:
        if not self._has_started:
            self._check_header()
            return
        if self._open is not None:
            yield from filter(None, [self._feed(self._buffer, final=True)])
        elif self.count and self._has_end and not self._has_gap and b"</mediawiki" not in tail:
            offset = self._offset + len(self._buffer)
            self._tally.record_damage(
                "truncated",
                f"the dump is truncated at byte {offset:,} of its XML (its end is missing)",
                offset=offset,
            )

    def _check_header(self) -> None:
        if fault := _header_fault(self._buffer):
            self._refuse(fault)
        elif self._buffer.strip() and b"<mediawiki" not in self._buffer:
            if tag := _FIRST_TAG.search(self._buffer):
                self._refuse(
                    f"the file is no MediaWiki dump but begins with <{tag[1].decode()}>",
                    "take a dump of pages, such as enwiki-latest-pages-articles.xml.bz2",
                )
            else:
                self._refuse(
                    "the dump is damaged at byte 0 of its XML (it holds no element <mediawiki>)"
                )
        elif self._buffer.strip() and b"</mediawiki" not in self._buffer and not self._has_gap:
            self._refuse("the dump is truncated: it ends before its first page")


def _header_fault(header: bytes) -> str:
    """Return why a dump with this header is refused; empty if it is read."""
    if doctype := _DOCTYPE.search(header):
        return (
            f"the dump is damaged: it declares a document type ({doctype[1].decode()}), which "
            f"dumps never do"
        )
    encoding = _ENCODING.match(header)
    if encoding and encoding[1].lower() not in _ENCODINGS:
        name = encoding[1].decode()
        return f"the dump is in {name}, not in UTF-8; convert it (iconv -f {name} -t UTF-8)"
    return ""


_STATE = {"truncated": "truncated", "damaged": "damaged", "bomb": "a bomb"}
