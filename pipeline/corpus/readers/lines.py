"""Sources that are read by line: lines of any length in flat memory, over damage in the file; and text of unknown encoding."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from pipeline.corpus.readers.base import Tally
from pipeline.corpus.readers.byte_source import ByteSource, Damaged

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its end.

    Attributes:
        offset: where it begins, in bytes of the unpacked file as UTF-8.
        data: its bytes; None if it is longer than the limit.
        size: its length in bytes.
    """

    offset: int
    data: bytes | None
    size: int


class ToldOfDamage(Protocol):
    """Who is told where a source is damaged: a tally, as a rule."""

    def damaged(self, reason: str, sentence: str, *, offset: int = 0) -> None: ...


def read_lines(source: ByteSource, tally: ToldOfDamage, limit: int) -> Iterator[Line]:
    """The lines of `source`. One that is cut by damage is left out; the tally is told where.

    What comes after damage is the next stream of the file, and streams are taken to begin with a line.
    """
    rest: list[bytes] = []  # of the line that is open
    held = passed = 0  # bytes of it in `rest`; bytes of it that were let go because there were too many
    offset = 0  # of the open line
    while True:
        try:
            chunk = source.read(_CHUNK)
        except Damaged as error:
            tally.damaged(error.reason, str(error), offset=error.offset)
            rest, held, passed = [], 0, 0
            continue
        if not chunk:
            break
        *whole, last = chunk.split(b"\n")
        for piece in whole:
            size = held + passed + len(piece)
            if passed or size > limit:
                yield Line(offset, None, size)
            else:
                yield Line(offset, b"".join([*rest, piece]) if rest else piece, size)
            offset += size + 1
            rest, held, passed = [], 0, 0
        if last:
            rest.append(last)
            held += len(last)
            if held > limit:
                rest, held, passed = [], 0, passed + held
    if held + passed:
        yield Line(offset, None if passed else b"".join(rest), held + passed)


_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
          (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))  # fmt: skip
_SAMPLE = 1 << 16


def decode(data: bytes, tally: Tally, *, offset: int = 0) -> str | None:
    """The text of a file or of a document in it, None for what is no text; the tally is told the reason.

    UTF-8, or UTF-16 and UTF-32 with their mark, UTF-16 without it where every other byte is zero, else Windows-1252
    (counted). Text that is UTF-8 but for single bytes is damaged UTF-8, not Windows-1252.

    Args:
        data: the bytes.
        tally: of the slice.
        offset: of `data` in the file.
    """
    if not data.strip():
        tally.quarantine("empty_file", "the file is empty", offset=offset)
        return None
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "") or _without_mark(data)
    if encoding:
        try:
            return data.decode(encoding)
        except UnicodeDecodeError as error:
            where = offset + error.start
            tally.quarantine("bad_encoding", f"the text begins as {encoding}, byte {where:,} does not fit", offset=where)
            return None
    if b"\0" in data:
        where = offset + data.index(b"\0")
        tally.quarantine("binary", f"the file holds a NUL at byte {where:,} and is no text", offset=where)
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if _mostly_utf8(data):
            where = offset + error.start
            tally.quarantine("bad_utf8", f"the text is UTF-8, but not at byte {where:,}", offset=where)
            return None
        tally.counters["encoding/windows-1252"] += 1
        return data.decode("cp1252", "replace")


def _without_mark(data: bytes) -> str:
    sample = data[:_SAMPLE]
    half = len(sample) // 2
    if half < 8:
        return ""
    for encoding, zeros in (("utf-16-le", sample[1::2]), ("utf-16-be", sample[0::2])):
        if zeros.count(0) > 0.4 * half and sample.count(0) == zeros.count(0):
            return encoding
    return ""


def _mostly_utf8(data: bytes) -> bool:
    """Whether there are more letters in UTF-8's own coding than bytes that do not fit into it."""
    text = data.decode("utf-8", "replace")
    bad = text.count("\ufffd")
    return sum(character > "\x7f" for character in text) - bad > bad
