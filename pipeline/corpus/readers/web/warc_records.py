"""The records of a WARC file (ISO 28500), found by their heads and checked against the lengths that they claim.

A record's `Content-Length` is believed if its end, another record, or that of the file follows there. Where it lies, the record is
told to the tally with its byte and the next head is looked for, so that one bad length costs one record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipeline.corpus.readers.base import Tally
from pipeline.corpus.readers.byte_source import ByteSource, Damaged

_CHUNK = 1 << 16
_VERSION = re.compile(rb"WARC/[01]\.\d{1,2}\r?\n")
_HEAD = re.compile(rb"WARC/[01]\.\d{1,2}\r?\n[A-Za-z][\w-]{0,60}:")
_LONGEST_MARK = 100
_LENGTH = re.compile(rb"^content-length:[ \t]*(\d{1,19})[ \t]*\r?$", re.MULTILINE | re.IGNORECASE)
_TYPE = re.compile(rb"^warc-type:[ \t]*([\w-]{1,40})", re.MULTILINE | re.IGNORECASE)
_LONGEST_HEAD = 64 << 10


@dataclass(frozen=True, slots=True)
class Raw:
    """A record.

    Attributes:
        offset: where it begins, in bytes of the unpacked file.
        type: `response`, `conversion`, …
        size: of its content, as it says.
        data: head and content as they stand; None if the content is longer than the limit.
    """

    offset: int
    type: str
    size: int
    data: bytes | None


class Scanner:
    """Reads records one after the other.

    Args:
        source: unpacked bytes.
        tally: of the slice.
        limit: bytes of content that are held at once.
    """

    def __init__(self, source: ByteSource, tally: Tally, limit: int) -> None:
        self._source, self._tally, self._limit = source, tally, limit
        self._buffer, self._offset = b"", 0
        self._ended = False  # nothing follows what is at hand
        self._cut = False  # but after a place that could not be read; the tally was told

    def records(self, wanted: Callable[[str], bool]) -> Iterator[Raw]:
        """The records whose type is wanted, in order."""
        while True:
            if self._find_head():
                record = self._record(wanted)
                if record is not None:
                    yield record
            elif self._cut:
                self._cut, self._ended = False, False
                self._drop(len(self._buffer))
            else:
                return

    def _fill(self, size: int) -> bool:
        """Have at least `size` bytes at hand; False at the end of the file, or before a place that cannot be read."""
        if len(self._buffer) >= size or self._ended:
            return len(self._buffer) >= size
        pieces, have = [self._buffer], len(self._buffer)
        try:
            while have < size:
                data = self._source.read(max(_CHUNK, min(size - have, 1 << 22)))
                if not data:
                    self._ended = True
                    break
                pieces.append(data)
                have += len(data)
        except Damaged as error:
            self._tally.damaged(error.reason, str(error), offset=error.offset)
            self._ended = self._cut = True
        self._buffer = b"".join(pieces)
        return have >= size

    def _drop(self, size: int) -> None:
        self._buffer = self._buffer[size:]
        self._offset += size

    def _find_head(self) -> bool:
        """Go to the next head; what lies before it, but for empty lines, is told."""
        garbage = -1
        while True:
            more = self._fill(_LONGEST_MARK)
            blank = len(self._buffer) - len(self._buffer.lstrip(b"\r\n"))
            if blank:
                self._drop(blank)
                continue
            if _VERSION.match(self._buffer) or not self._buffer:
                found = 0
            else:
                garbage = self._offset if garbage < 0 else garbage
                match = _HEAD.search(self._buffer, 1)
                found = match.start() if match else max(1, len(self._buffer) - _LONGEST_MARK)
                if match is None and more:
                    self._drop(found)
                    self._fill(len(self._buffer) + 1)
                    continue
                found = match.start() if match else len(self._buffer)
            if garbage >= 0:
                where = self._offset + found
                self._tally.quarantine("no_record", f"bytes {garbage:,} to {where:,} are no WARC record", offset=garbage)
            self._drop(found)
            return bool(self._buffer)

    def _record(self, wanted: Callable[[str], bool]) -> Raw | None:
        """The record at hand, or None if it is not wanted or not what it says."""
        start = self._offset
        size = 4096
        end = -1
        while end < 0:
            more = self._fill(size)
            end, width = _end_of_head(self._buffer)
            if end < 0 and (not more or size > _LONGEST_HEAD):
                self._tally.quarantine("bad_record", f"the record at byte {start:,} has a head without an end", offset=start)
                self._drop(5)
                return None
            size *= 2
        head = self._buffer[: end + width]
        kind, length = _TYPE.search(head), _LENGTH.search(head)
        if kind is None or length is None:
            missing = "WARC-Type" if kind is None else "Content-Length"
            self._tally.quarantine("bad_record", f"the record at byte {start:,} has no {missing}", offset=start)
            self._drop(len(head))
            return None
        name, content = kind[1].decode().lower(), int(length[1])
        if content > self._limit:
            return self._long(Raw(start, name, content, None), len(head), wanted)
        whole = self._fill(len(head) + content + _LONGEST_MARK)
        if not self._borders(len(head) + content, whole):
            self._misled(Raw(start, name, content, None), len(head))
            return None
        data = self._buffer[: len(head) + content] if wanted(name) else None
        self._drop(len(head) + content)
        return None if data is None else Raw(start, name, content, data)

    def _borders(self, position: int, whole: bool) -> bool:
        """Whether a record may end at this place: an empty line follows, or a head, or nothing."""
        if len(self._buffer) < position:
            return False
        end = self._buffer[position : position + _LONGEST_MARK]
        rest = end.lstrip(b"\r\n")
        return (
            not rest
            or end.startswith(b"\r\n\r\n")
            or bool(_VERSION.match(rest))
            or (not whole and b"WARC/1.0".startswith(rest[:8]))
        )

    def _misled(self, record: Raw, head: int) -> None:
        """The length of the record is not true: go on at the head that comes next."""
        match = _HEAD.search(self._buffer, head)
        if match is None and self._ended and len(self._buffer) < head + record.size:
            self._truncated(record)
            self._drop(len(self._buffer))
            return
        self._tally.quarantine(
            "bad_length",
            f"the record at byte {record.offset:,} does not have the {record.size:,} bytes that it says",
            offset=record.offset,
        )
        if match is not None:
            self._drop(match.start())
            return
        self._drop(max(head, len(self._buffer) - _LONGEST_MARK))
        self._forward()

    def _truncated(self, record: Raw) -> None:
        if not self._cut:
            self._tally.damaged("truncated", f"the file ends inside the record at byte {record.offset:,}", offset=record.offset)

    def _forward(self) -> int:
        """Drop everything up to the next head; returns how many bytes."""
        passed = 0
        while True:
            match = _HEAD.search(self._buffer, 1)
            if match:
                self._drop(match.start())
                return passed + match.start()
            step = max(0, len(self._buffer) - _LONGEST_MARK)
            self._drop(step)
            passed += step
            if not self._fill(len(self._buffer) + 1):
                left = len(self._buffer)
                self._drop(left)
                return passed + left

    def _long(self, record: Raw, head: int, wanted: Callable[[str], bool]) -> Raw | None:
        """A record longer than the limit is passed over without being held; it ends where it says, or where another begins."""
        self._drop(head - 1)
        passed = self._forward() - 1
        if passed < record.size:
            if not self._buffer:
                self._tally.damaged(
                    "truncated", f"the file ends inside the record at byte {record.offset:,}", offset=record.offset
                )
            else:
                sentence = f"the record at byte {record.offset:,} does not have the {record.size:,} bytes that it says"
                self._tally.quarantine("bad_length", sentence, offset=record.offset)
            return None
        return record if wanted(record.type) else None


def _end_of_head(data: bytes) -> tuple[int, int]:
    """(position, width) of the empty line after a head; (-1, 0) if it is not at hand."""
    found = data.find(b"\r\n\r\n")
    bare = data.find(b"\n\n", 0, found if found >= 0 else len(data))
    return (bare, 2) if bare >= 0 else (found, 4 if found >= 0 else 0)
