"""Source `warc`: web pages from WARC files (.warc, .warc.gz), and texts from WET files.

HTML in responses and resources is rid of navigation and boilerplate by Resiliparse, its lines become paragraphs, and lines that are no sentence
are dropped; text/plain and conversion records (WET) are taken as they are. FastWARC reads a record's heads and undoes its transfer and content
encodings. The characters are those of the byte order mark, the HTTP head, the page's own `<meta>`, or what they look like, in this order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.corpus.document import Document
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.readers.base import FileReader, Slice, Tally
from pipeline.corpus.readers.paragraphs import paragraphs
from pipeline.corpus.readers.prose import reads_as_prose
from pipeline.corpus.readers.unpack import open_source
from pipeline.corpus.readers.web.characters import decoded
from pipeline.corpus.readers.web.warc_records import Raw, Scanner

_TYPES = frozenset({"response", "resource", "conversion"})
_HTML = frozenset({"text/html", "application/xhtml+xml", "application/vnd.wap.xhtml+xml"})
_LOOKS_HTML = re.compile(rb"\s*(?:<!--.{0,500}?-->\s*)?<(?:!doctype html|html|head|body)\b", re.IGNORECASE | re.DOTALL)
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
_UNCLOSED = frozenset(
    "area base br col embed hr img input link meta param source track wbr p li dt dd tr td th thead tbody tfoot option optgroup colgroup".split()
)
_DEEPEST = 256  # elements inside each other; the extractor's time grows with their depth, and no page that people read has more
_LONGEST_HTML = 16 << 20


@dataclass(frozen=True, slots=True)
class _Content:
    """What a record holds."""

    mime: str
    charset: str
    data: bytes


class WarcReader(FileReader):
    """Documents `warc/<relative file name>/<record id>`."""

    kind = "warc"
    patterns = tuple(
        f"*.{name}{packed}" for name in ("warc", "warc.wet", "wet") for packed in ("", ".gz", ".bz2", ".xz", ".zst")
    )

    def read(self, file_slice: Slice, options: CorpusOptions, tally: Tally) -> Iterator[Document]:
        """The pages and texts of one file."""
        source = open_source(file_slice.path)
        found = False
        try:
            scanner = Scanner(source, tally, options.maximum_document_bytes)
            for raw in scanner.records(_TYPES.__contains__):
                found = True
                tally.read(raw.size)
                if raw.data is None:
                    tally.drop("too_long")
                    continue
                document = self._document(raw, file_slice, options, tally)
                if isinstance(document, str):
                    tally.drop(document)
                else:
                    yield document
        finally:
            source.close()
        if not found and not tally.unreadable:
            tally.quarantine("no_documents", "the file holds no response, resource or conversion record")

    def _document(self, raw: Raw, file_slice: Slice, options: CorpusOptions, tally: Tally) -> Document | str:
        """The record's document, or the reason why there is none."""
        from fastwarc.warc import WarcRecord

        assert raw.data is not None
        try:
            record = WarcRecord.from_bytes(raw.data + b"\r\n\r\n")
            content = _content(record, raw.type, options.maximum_document_bytes)
        except (OSError, ValueError, EOFError) as error:
            message = str(error).rstrip(".") or type(error).__name__
            tally.quarantine("bad_record", f"the record at byte {raw.offset:,} cannot be read ({message})", offset=raw.offset)
            return "bad_record"
        if isinstance(content, str):
            return content
        headers = {name.lower(): value for name, value in record.headers.items()}
        uri = headers.get("warc-target-uri", "").strip("<>")
        text = decoded(content.data, content.charset, html=content.mime in _HTML)
        title = ""
        if content.mime in _HTML:
            page = _main_text(text)
            if isinstance(page, str):
                return page
            title, lines = page
            kept = [line for line in lines if reads_as_prose(line)]
            tally.drop_lines("fragment", len(lines) - len(kept))
        else:
            kept = list(paragraphs(text))
        name = headers.get("warc-record-id", "").strip("<>").removeprefix("urn:uuid:") or str(raw.offset)
        return Document(
            id=f"{self.kind}/{file_slice.name}/{name}", source=self.kind, title=title or uri, paragraphs=tuple(kept), url=uri
        )


def _content(record: Any, kind: str, limit: int) -> _Content | str:
    """The payload without its encodings, or the reason why it is none that is read."""
    mime = record.headers.get("Content-Type", "") or ""
    if kind == "response":
        if not mime.lower().startswith("application/http"):
            return "not_http"
        record.parse_http(auto_decode="all")
        if record.http_headers is None or record.http_headers.status_code is None:
            return "not_http"
        if record.http_headers.status_code != 200:
            return "http_status"
        mime = record.http_headers.get("Content-Type", "") or ""
    data = record.reader.read(limit + 1)
    if len(data) > limit:
        return "too_long"
    charset = _CHARSET.search(mime)
    name = mime.partition(";")[0].strip().lower()
    if not name and kind != "conversion":
        name = "text/html" if _LOOKS_HTML.match(data) else ""
    name = name or ("text/plain" if kind == "conversion" else "")
    if name in _HTML and len(data) > _LONGEST_HTML:
        return "too_long"
    if name not in _HTML and name != "text/plain":
        return "not_text"
    if not data.strip():
        return "empty"
    return _Content(name, charset[1] if charset else "", data)


def _main_text(text: str) -> tuple[str, list[str]] | str:
    """(title, lines of the main text) of a page in HTML, or the reason why it is not read."""
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    if _depth(text) > _DEEPEST:
        return "too_deep"
    tree = HTMLTree.parse(text.replace("\0", ""))
    title = " ".join((tree.title or "").split())
    body = extract_plain_text(
        tree,
        main_content=True,
        list_bullets=False,
        alt_texts=False,
        links=False,
        form_fields=False,
        noscript=False,
        comments=False,
    )
    return title, [line for line in (" ".join(line.split()) for line in body.split("\n")) if line]


def _depth(text: str) -> int:
    """How many elements are open at once, at most; those whose end may be left out do not count."""
    depth = deepest = 0
    for closing, name in _TAG.findall(text):
        if name.lower() in _UNCLOSED:
            continue
        depth = max(0, depth - 1) if closing else depth + 1
        deepest = max(deepest, depth)
    return deepest


reader = WarcReader()
