"""Source `warc`: web pages from WARC files (.warc, .warc.gz), and texts from WET files."""

from __future__ import annotations

import contextlib
import re

from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.readers import byte_ranges
from cloze.pipeline.corpus.readers.base import (
    Documents,
    FileReader,
    ReadCounters,
    Slice,
    file_patterns,
    has_expected_type,
)
from cloze.pipeline.corpus.readers.http_message import decode_body, parse_response
from cloze.pipeline.corpus.readers.plain_text import paragraphs
from cloze.pipeline.corpus.readers.raised import without_plain_marks
from cloze.pipeline.corpus.readers.streams import Streams, is_packed, peek
from cloze.pipeline.corpus.readers.warc_records import (
    WarcRecord,
    find_packed_record,
    find_plain_record,
    open_warc,
    read_records,
)
from cloze.pipeline.corpus.readers.web_text import WebOptions, decode_page, main_text

_PAGES = frozenset({"response", "resource", "conversion"})
_ELSEWHERE = frozenset({"revisit", "continuation"})  # refer to the content of other records
# Resources that crawlers write about a crawl, or derive from its pages: Wget, Wpull, Browsertrix,
# warcprox and Brozzler. As texts they would be logs, or a page once more.
_OF_CRAWLER = re.compile(
    r"metadata:|urn:(?:x-wpull|text|pageinfo|view|thumbnail|crawl-?logs?|logs?):"
    r"|(?:screenshot|thumbnail|youtube-dl)(?:-\w+)?:",
    re.IGNORECASE,
)
_HTML = frozenset({"text/html", "application/xhtml+xml", "application/vnd.wap.xhtml+xml"})
_HTML_START = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml\b[^>]{0,200}>\s*)?(?:<!--.{0,500}?-->\s*)?"
    rb"<(?:!doctype html|html|head|body)\b",
    re.IGNORECASE | re.DOTALL,
)
_BINARY = re.compile(
    rb"%PDF-|\x89PNG|GIF8|\xff\xd8\xff|PK\x03\x04|\x1f\x8b|\{\\rtf|Rar!|RIFF|OggS|ID3|wOF|.{4}ftyp",
    re.DOTALL,
)
_CHARSET = re.compile(r"charset\s{0,8}=[\s\"']{0,8}([\w.:-]{1,40})", re.IGNORECASE)
_LONGEST_HTML = 16 << 20


class WarcReader(FileReader):
    """Reader of documents `warc/<relative file name>/<record id>`."""

    kind = "warc"
    options = WebOptions
    patterns = file_patterns(".warc", ".wet")
    clean_shares = (("", 0.15),)

    def cut(self, file_slice: Slice) -> list[Slice]:
        """Divide a large file between records; if compressed, only one with a record per member."""
        if not is_packed(file_slice.path):
            return byte_ranges.cut(file_slice, find_plain_record)
        is_gzip = file_slice.path.lower().endswith(".gz")
        return byte_ranges.cut(file_slice, find_packed_record) if is_gzip else [file_slice]

    def read(self, file_slice: Slice, options: WebOptions, tally: ReadCounters) -> Documents:
        """Yield the pages and texts of one file."""
        begin, is_empty = file_slice.span[0] if file_slice.span else 0, not file_slice.span
        with contextlib.closing(open_warc(file_slice.path, file_slice.span)) as opened:
            head, source = peek(opened)
            if not begin and not has_expected_type(head, tally):
                return
            limit, unpacks = options.maximum_document_bytes, isinstance(opened, Streams)
            first = 0 if unpacks else begin
            records = read_records(source, tally, limit, is_packed=unpacks, begin=first)
            for record in records:
                kind = record.fields.get("warc-type", "").lower()
                if kind not in _PAGES and kind not in _ELSEWHERE:
                    continue
                is_empty = False
                tally.read(record.size)
                if kind in _ELSEWHERE:
                    tally.drop("not_stored")
                    continue
                number = f"{begin}+{record.offset}" if begin and unpacks else str(record.offset)
                document = _document(record, kind, number, file_slice, options, tally)
                if isinstance(document, str):
                    tally.drop(document)
                else:
                    yield document
        if is_empty and not tally.unreadable:
            tally.quarantine(
                "no_documents", "the file holds no response, resource or conversion record"
            )


def _document(
    record: WarcRecord,
    kind: str,
    number: str,
    file_slice: Slice,
    options: WebOptions,
    tally: ReadCounters,
) -> Document | str:
    """Return the record's document, or the reason to drop it; `number` stands for a missing id."""
    uri = record.fields.get("warc-target-uri", "").strip("<>")
    if kind == "resource" and _OF_CRAWLER.match(uri):
        return "of_crawler"
    content = _content(record, kind, options.maximum_document_bytes)
    if isinstance(content, str):
        return content
    is_html, charset, data = content
    text = decode_page(data, charset, is_html=is_html)
    if not text:
        return "encoding"
    title = ""
    if is_html:
        page = main_text(text, options.extractor)
        if isinstance(page, str):
            return page
        title, lines, dropped = page
        for reason, count in dropped.items():
            tally.drop_lines(reason, count)
    else:
        lines = list(map(without_plain_marks, paragraphs(text)))
    record_id = record.fields.get("warc-record-id", "").strip("<>").removeprefix("urn:uuid:")
    return Document(
        id=f"{file_slice.kind}/{file_slice.name}/{record_id or number}",
        source=file_slice.kind,
        title=title or uri,
        paragraphs=tuple(lines),
        url=uri,
    )


def _content(record: WarcRecord, kind: str, limit: int) -> tuple[bool, str, bytes] | str:
    """Return (whether it is HTML, charset, decoded page), or the reason to drop the record."""
    if record.content is None:
        return "too_long"
    content_type = record.fields.get("content-type", "")
    data = decode_body(record.content, {}, limit)
    if kind == "response" or content_type.lower().startswith("application/http"):
        status, fields, body = parse_response(data, _HTML_START.match, limit)
        if status not in (0, 200):
            return "http_status"
        if not status and _media_type(content_type) not in _HTML:
            return "not_http"
        if status:
            content_type, data = fields.get("content-type", ""), body
    if len(data) > limit:
        return "too_long"
    if not data.strip():
        return "empty"
    match = _CHARSET.search(content_type)
    media_type = _media_type(content_type)
    # A page that is declared as something else is still a page; a PDF is none.
    is_html = media_type in _HTML or bool(_HTML_START.match(data))
    is_text = media_type == "text/plain" or (not media_type and kind == "conversion")
    if not (is_html or is_text) or _BINARY.match(data):
        return "not_text"
    if is_html and len(data) > _LONGEST_HTML:
        return "too_long"
    return is_html, match[1] if match else "", data


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


reader = WarcReader()
