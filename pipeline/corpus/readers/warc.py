"""Source `warc`: web pages from WARC files (.warc, .warc.gz), and texts from WET files.

FastWARC reads the records (ISO 28500), one member of the compressed file at a time. Crawlers
compress each record as a separate member, so damage or a wrong length costs only that member. An
uncompressed file counts as one member.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.readers.base import FileReader, ReadCounters, Slice, file_patterns
from cloze.pipeline.corpus.readers.plain_text import paragraphs
from cloze.pipeline.corpus.readers.streams import (
    ByteSource,
    CorruptStreamError,
    Streams,
    open_source,
)
from cloze.pipeline.corpus.readers.web_text import WebOptions, decode_page, main_text

_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class WarcRecord:
    """A WARC record.

    Attributes:
        offset: first byte in the decompressed file.
        type: value of WARC-Type, such as `response`.
        size: stated length of the content in bytes.
        record: `fastwarc.warc.WarcRecord` with its content in memory; None if longer than the
            limit.
    """

    offset: int
    type: str
    size: int
    record: Any | None


class _Member:
    """File object for FastWARC: one stream of a compressed file, or an uncompressed file.

    Attributes:
        damage: why the member ends early, if it does.
        following: first bytes of the next member.
    """

    def __init__(self, source: ByteSource, first: bytes) -> None:
        self._source, self._data, self._position = source, first, 0
        self._start = _start(source)  # of the member, in the compressed file
        self._ended = False
        self.damage: CorruptStreamError | None = None
        self.following = b""

    def read(self, size: int = -1, /) -> bytes:
        if not self._data and not self._ended:
            self._fill()
        size = len(self._data) if size < 0 else size
        data, self._data = self._data[:size], self._data[size:]
        self._position += len(data)
        return data

    def _fill(self) -> None:
        try:
            data = self._source.read(_CHUNK)
        except CorruptStreamError as error:
            # Not raised here: FastWARC would turn it into an OSError.
            self.damage, self._ended = error, True
            return
        if _start(self._source) != self._start:
            self.following, self._ended = data, True
        else:
            self._data, self._ended = data, not data

    def tell(self) -> int:
        return self._position


def _start(source: ByteSource) -> int:
    return source.start if isinstance(source, Streams) else 0


def read_records(source: ByteSource, tally: ReadCounters, limit: int) -> Iterator[WarcRecord]:
    """Yield the records of a file in order.

    Args:
        source: decompressed bytes.
        tally: counters of the slice.
        limit: maximum bytes of content in memory.
    """
    offset, first_bytes = 0, b""
    while True:
        try:
            first_bytes = first_bytes or source.read(_CHUNK)
        except CorruptStreamError as error:
            tally.record_damage(error.reason, str(error), offset=error.offset)
            continue
        if not first_bytes:
            return
        member = _Member(source, first_bytes)
        yield from _records(member, offset, tally, limit, packed=isinstance(source, Streams))
        while member.read():
            pass
        if member.damage is not None:
            tally.record_damage(
                member.damage.reason, str(member.damage), offset=member.damage.offset
            )
        offset, first_bytes = offset + member.tell(), member.following


def _records(
    member: _Member, start: int, tally: ReadCounters, limit: int, *, packed: bool
) -> Iterator[WarcRecord]:
    """Yield the records of a member; each is yielded once the next record or the end is reached."""
    from fastwarc.warc import ArchiveIterator

    stream: Any = member  # FastWARC calls only `read` and `tell`
    pending: WarcRecord | None = None  # complete only if another record or the end follows
    offset, reason, fault = start, "", ""
    try:
        for record in ArchiveIterator(stream, parse_http=False, stream_detect=False):
            if pending is not None:
                yield pending
            pending, offset = None, start + record.stream_pos
            size = record.content_length
            stated_length = record.headers.get("Content-Length") or "no"
            if stated_length.strip() != str(size):
                reason = "bad_record"
                fault = (
                    f"the record at byte {offset:,} has {stated_length[:30]} for its Content-Length"
                )
                break
            if _attach_content(record, size, limit) < size:
                reason, scope = ("bad_length", "member") if packed else ("truncated", "file")
                fault = f"the {scope} ends inside the record at byte {offset:,} of {size:,} bytes"
                break
            record_type = (record.headers.get("WARC-Type") or "").lower()
            pending = WarcRecord(offset, record_type, size, record if size <= limit else None)
    except (OSError, ValueError) as error:
        if pending is None:
            reason = "no_record"
            fault = f"no WARC record begins at byte {offset:,} ({str(error).rstrip('.')})"
        elif member.damage is None:
            reason = "bad_length"
            fault = f"the record at byte {offset:,} does not end after its {pending.size:,} bytes"
    if not fault:
        if pending is not None:
            yield pending
        return
    while member.read():
        pass
    if member.damage is not None:
        return  # `read_records` reports the damage
    message = f"{fault}; nothing is read up to byte {start + member.tell():,}"
    if packed:
        tally.quarantine(reason, message, offset=offset)
    else:
        tally.record_damage(reason, message, offset=offset)


def _attach_content(record: Any, size: int, limit: int) -> int:
    """Read a record's content, and attach it if it is not too long. Return its size in bytes.

    FastWARC's own `freeze` allocates the stated length; a wrong length could exhaust memory.
    """
    pieces, length = [], 0
    while data := record.reader.read(_CHUNK):
        length += len(data)
        if size <= limit:
            pieces.append(data)
    if size <= limit:
        record.set_bytes_content(b"".join(pieces))
    return length


_TYPES = frozenset({"response", "resource", "conversion"})
_HTML = frozenset({"text/html", "application/xhtml+xml", "application/vnd.wap.xhtml+xml"})
_HTML_START = re.compile(
    rb"\s*(?:<!--.{0,500}?-->\s*)?<(?:!doctype html|html|head|body)\b", re.IGNORECASE | re.DOTALL
)
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_LONGEST_HTML = 16 << 20


class WarcReader(FileReader):
    """Reader of documents `warc/<relative file name>/<record id>`."""

    kind = "warc"
    options = WebOptions
    patterns = file_patterns(".warc", ".wet")

    def read(
        self, file_slice: Slice, options: WebOptions, tally: ReadCounters
    ) -> Iterator[Document]:
        """Yield the pages and texts of one file."""
        is_empty = True
        with contextlib.closing(open_source(file_slice.path)) as source:
            for raw in read_records(source, tally, options.maximum_document_bytes):
                if raw.type not in _TYPES:
                    continue
                is_empty = False
                tally.read(raw.size)
                if raw.record is None:
                    tally.drop("too_long")
                    continue
                document = self._document(raw, file_slice, options, tally)
                if isinstance(document, str):
                    tally.drop(document)
                else:
                    yield document
        if is_empty and not tally.unreadable:
            tally.quarantine(
                "no_documents", "the file holds no response, resource or conversion record"
            )

    def _document(
        self, raw: WarcRecord, file_slice: Slice, options: WebOptions, tally: ReadCounters
    ) -> Document | str:
        """Return the record's document, or the reason to drop it."""
        record = raw.record
        assert record is not None
        try:
            content = _content(record, raw.type, options.maximum_document_bytes)
        except (OSError, ValueError, EOFError) as error:
            message = str(error).rstrip(".") or type(error).__name__
            tally.quarantine(
                "bad_record",
                f"the record at byte {raw.offset:,} cannot be read ({message})",
                offset=raw.offset,
            )
            return "bad_record"
        if isinstance(content, str):
            return content
        media_type, charset, data = content
        headers = {record_id.lower(): value for record_id, value in record.headers.items()}
        uri = headers.get("warc-target-uri", "").strip("<>")
        text = decode_page(data, charset, is_html=media_type in _HTML)
        title = ""
        if media_type in _HTML:
            page = main_text(text, options.extractor)
            if isinstance(page, str):
                return page
            title, lines, dropped = page
            for reason, count in dropped.items():
                tally.drop_lines(reason, count)
        else:
            lines = list(paragraphs(text))
        record_id = headers.get("warc-record-id", "").strip("<>").removeprefix("urn:uuid:")
        return Document(
            id=f"{self.kind}/{file_slice.name}/{record_id or raw.offset}",
            source=self.kind,
            title=title or uri,
            paragraphs=tuple(lines),
            url=uri,
        )


def _content(record: Any, kind: str, limit: int) -> tuple[str, str, bytes] | str:
    """Return (media type, charset, decoded payload), or the reason to drop the record."""
    content_type = record.headers.get("Content-Type", "") or ""
    if kind == "response":
        if not content_type.lower().startswith("application/http"):
            return "not_http"
        record.parse_http(auto_decode="all")
        if record.http_headers is None or record.http_headers.status_code is None:
            return "not_http"
        if record.http_headers.status_code != 200:
            return "http_status"
        content_type = record.http_headers.get("Content-Type", "") or ""
    data = record.reader.read(limit + 1)
    if len(data) > limit:
        return "too_long"
    match = _CHARSET.search(content_type)
    media_type = content_type.partition(";")[0].strip().lower()
    if not media_type and kind == "conversion":
        media_type = "text/plain"
    elif not media_type and _HTML_START.match(data):
        media_type = "text/html"
    if media_type in _HTML and len(data) > _LONGEST_HTML:
        return "too_long"
    if media_type not in _HTML and media_type != "text/plain":
        return "not_text"
    if not data.strip():
        return "empty"
    return media_type, match[1] if match else "", data


reader = WarcReader()
