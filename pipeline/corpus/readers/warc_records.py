"""Records of WARC files, however they are packed, damaged or cut.

A record (ISO 28500) is a version line, header fields, and as many bytes as Content-Length states;
another record or the end of the file follows. A record that lies costs itself alone: reading
continues at the next version line, however the file is divided into compressed members.
"""

from __future__ import annotations

import contextlib
import re
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from cloze.core import storage
from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.byte_ranges import MARGIN
from cloze.pipeline.corpus.readers.http_message import LONGEST_HEAD, read_fields
from cloze.pipeline.corpus.readers.streams import (
    FORMATS,
    ByteSource,
    CorruptStreamError,
    StreamFormat,
    Streams,
    open_source,
)

_CHUNK = 1 << 16
_VERSION = re.compile(rb"WARC/\d\.\d{1,2}[ \t]{0,8}\r?\n")
# Anywhere in a line: the record before it may have been cut off.
_NEXT = re.compile(_VERSION.pattern + rb"[A-Za-z-]{1,40}[ \t]{0,8}:")
_LONGEST_NEXT = 80  # bytes of a match
_HEAD_END = re.compile(rb"\n\r?\n")
_LINE_ENDS = re.compile(rb"[\r\n]*")
_FOLLOWS = re.compile(rb"[\r\n]{0,8}(?:WARC/\d|\Z)")
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")


@dataclass(frozen=True, slots=True)
class WarcRecord:
    """A WARC record."""

    offset: int  # first byte in the decompressed file
    size: int  # stated length of the content in bytes
    fields: Mapping[str, str]  # header fields by lower-case name
    content: bytes | None  # the content; None if longer than the limit


@dataclass(frozen=True, slots=True)
class _BadRecord:
    """Bytes that are no sound record: where, why, and how many up to the next record."""

    offset: int
    reason: str
    fault: str
    size: int


class _Window:
    """The bytes of a file that are read and not yet passed, up to damage or the end."""

    def __init__(self, source: ByteSource, begin: int) -> None:
        self._source = source
        self.data = bytearray()
        self.offset = begin  # position of the first of them in the decompressed file
        # why no more can be read; None at the end of the file
        self.damage: CorruptStreamError | None = None

    def fill(self) -> bool:
        """Read on; return False at damage or the end."""
        if self.damage is not None:
            return False
        try:
            data = self._source.read(_CHUNK)
        except CorruptStreamError as error:
            self.damage = error
            return False
        self.data += data
        return bool(data)

    def has(self, size: int) -> bool:
        """Read until there are `size` bytes; return False if there are fewer."""
        while len(self.data) < size:
            if not self.fill():
                return False
        return True

    def drop(self, size: int) -> None:
        """Pass over the first bytes."""
        del self.data[:size]
        self.offset += size

    def skip(self, begin: int, end: int = sys.maxsize) -> int:
        """Pass over bytes, in bounded memory: up to a record that begins between two positions.

        Without one, up to `end`, damage or the end of the file. Return the number of bytes.
        """
        first = self.offset
        while not (match := _NEXT.search(self.data, begin, end)) and len(self.data) < end:
            size = max(0, len(self.data) - _LONGEST_NEXT)
            self.drop(size)
            begin, end = max(0, begin - size), end - size
            if not self.fill():
                break
        self.drop(match.start() if match else min(end, len(self.data)))
        return self.offset - first


def read_records(
    source: ByteSource, tally: ReadCounters, limit: int, *, is_packed: bool, begin: int = 0
) -> Iterator[WarcRecord]:
    """Yield the records of a file in order; count and record what is none.

    Args:
        source: decompressed bytes.
        limit: maximum bytes of content in memory.
        is_packed: the source unpacks a file, and so notices itself if that breaks off.
        begin: position of the source's first byte.
    """
    window, has_records = _Window(source, begin), False
    while True:
        while (record := _next_record(window, limit)) is not None:
            if isinstance(record, WarcRecord):
                has_records = True
                yield record
                continue
            if not window.data and window.damage is not None:
                break  # which is reported instead
            sentence = f"{record.fault}; {record.size:,} bytes are passed over"
            is_cut = record.reason == "truncated" and not is_packed
            if not window.data and (is_cut or not has_records):
                tally.record_damage(record.reason, sentence, offset=record.offset)
            else:
                reason = "bad_length" if record.reason == "truncated" else record.reason
                tally.quarantine(reason, sentence, offset=record.offset)
        if window.damage is None:
            return
        damage, window.damage = window.damage, None
        tally.record_damage(damage.reason, str(damage), offset=damage.offset)


def _next_record(window: _Window, limit: int) -> WarcRecord | _BadRecord | None:
    """Return the next record, and pass over it; None at damage or the end of the file."""
    while window.has(1) and (blank := _LINE_ENDS.match(window.data)) and blank.end():
        window.drop(blank.end())
    if not window.data:
        return None
    offset, place = window.offset, f"the record at byte {window.offset:,}"
    head = _head(window)
    if head is None:
        fault = f"no WARC record begins at byte {offset:,}"
        return _BadRecord(offset, "no_record", fault, window.skip(0))
    fields, begin = head
    size = _size(fields)
    if size is None:
        fault = f"{place} states no number as its Content-Length"
        return _BadRecord(offset, "bad_record", fault, window.skip(1))
    end, passed = begin + size, 0
    if size > limit:
        passed = window.skip(begin, end)
        if passed == end:
            return WarcRecord(offset, size, fields, None)
    elif (window.has(end + _LONGEST_NEXT) or window.has(end)) and _ends_at(window, begin, end):
        content = bytes(window.data[begin:end])
        window.drop(end)
        return WarcRecord(offset, size, fields, content)
    is_short = passed > 0 or len(window.data) < end
    passed = passed or window.skip(1)
    if is_short and not window.data:
        fault = f"the file ends inside the record at byte {offset:,} of {size:,} bytes"
        return _BadRecord(offset, "truncated", fault, passed)
    return _BadRecord(offset, "bad_length", f"{place} does not end after {size:,} bytes", passed)


def _head(window: _Window) -> tuple[dict[str, str], int] | None:
    """Return a record's header fields and the first byte of its content; None if there is none."""
    window.has(_LONGEST_NEXT)
    version = _VERSION.match(window.data)
    if version is None:
        return None
    while not _HEAD_END.search(window.data, version.end() - 1, LONGEST_HEAD):
        if len(window.data) >= LONGEST_HEAD or not window.fill():
            break  # without its length, the record is bad
    return read_fields(window.data, version.end())


def _size(fields: Mapping[str, str]) -> int | None:
    length = fields.get("content-length", "")
    return int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None


def _ends_at(window: _Window, begin: int, end: int) -> bool:
    """Return True if a record's content ends there: before a record, the end, or a blank line.

    What follows the blank line may be junk. A record inside the content means a wrong length.
    """
    if _FOLLOWS.match(window.data, end):
        return True
    return bool(_BLANK_LINE.match(window.data, end)) and not _NEXT.search(window.data, begin, end)


_DICTIONARY = b"\x5d\x2a\x4d\x18"  # of the frame that holds it: IIPC's "zstd WARC" format
_LONGEST_DICTIONARY = 64 << 20


def open_warc(path: str, span: tuple[int, int] | None = None) -> ByteSource:
    """Open a file; a `.warc.zst` may begin with the dictionary of its zstd frames."""
    source = open_source(path, span)
    if not path.lower().endswith(".zst"):
        return source
    from backports import zstd

    with storage.open_input(path) as handle:
        head = handle.read(8)
        size = min(_LONGEST_DICTIONARY, int.from_bytes(head[4:], "little"))
        content = handle.read(size) if head.startswith(_DICTIONARY) else b""
    form = FORMATS[".zst"]
    try:
        if form.magic.match(content):
            content = zstd.ZstdDecompressor().decompress(content, _LONGEST_DICTIONARY)
        dictionary = zstd.ZstdDict(content)
    except (zstd.ZstdError, ValueError):  # no dictionary
        return source
    source.close()
    make = partial(zstd.ZstdDecompressor, zstd_dict=dictionary)
    return Streams(storage.open_input(path), StreamFormat(make, form.magic))


def find_packed_record(data: bytes) -> int | None:
    """Return where a gzip member with a record begins, as crawlers pack each record by itself."""
    for match in FORMATS[".gz"].magic.finditer(data, 1):
        with contextlib.suppress(zlib.error):
            head = zlib.decompressobj(wbits=31).decompress(data[match.start() :][:MARGIN], 16)
            if head.startswith(b"WARC/"):
                return match.start()
    return None


def find_plain_record(data: bytes) -> int | None:
    """Return where a record begins, between two others: pages may quote records."""
    for match in _BETWEEN.finditer(data):
        fields, begin = read_fields(data, data.index(b"\n", match.end()) + 1)
        if _BETWEEN.match(data, begin + (_size(fields) or 0)):
            return match.end()
    return None


_BETWEEN = re.compile(rb"\r?\n\r?\n(?=" + _NEXT.pattern + rb")")
