"""Sources read by line: lines in bounded memory, decoding, and paragraphs of plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.streams import ByteSource, CorruptStreamError, detect_unicode

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its end.

    Attributes:
        offset: start in bytes of the decompressed file as UTF-8.
        data: bytes; None if longer than the limit.
        size: length in bytes.
    """

    offset: int
    data: bytes | None
    size: int


class DamageListener(Protocol):
    """Receiver of damage reports, usually `ReadCounters`."""

    def record_damage(self, reason: str, sentence: str, *, offset: int = 0) -> None: ...


def read_lines(source: ByteSource, tally: DamageListener, limit: int) -> Iterator[Line]:
    """Yield the lines of `source`. Lines interrupted by damage are left out and reported.

    After damage, reading continues with the next stream, which is assumed to begin with a line.
    """
    open_pieces: list[bytes] = []  # of the open line
    size = discarded = 0  # bytes of the open line: in `open_pieces`; discarded
    offset = 0  # of the open line
    while True:
        try:
            chunk = source.read(_CHUNK)
        except CorruptStreamError as error:
            tally.record_damage(error.reason, str(error), offset=error.offset)
            open_pieces, size, discarded = [], 0, 0
            continue
        if not chunk:
            break
        *complete_lines, remainder = chunk.split(b"\n")
        for line in complete_lines:
            total = size + discarded + len(line)
            if discarded or total > limit:
                yield Line(offset, None, total)
            else:
                yield Line(offset, b"".join([*open_pieces, line]) if open_pieces else line, total)
            offset += total + 1
            open_pieces, size, discarded = [], 0, 0
        if remainder:
            open_pieces.append(remainder)
            size += len(remainder)
            if size > limit:
                open_pieces, size, discarded = [], 0, discarded + size
    if size + discarded:
        yield Line(offset, None if discarded else b"".join(open_pieces), size + discarded)


_HIGH = bytes(range(128, 256))
_NO_SPACE = dict.fromkeys(b"\t\n\v\f\r\x1a\xa0\xad")  # including the mark that ends a CP/M text
_MOST_HIGH = 0.4  # share of non-ASCII letters in Windows-1252; Western languages: below a fifth


def decode(data: bytes, tally: ReadCounters, *, offset: int = 0) -> str | None:
    """Decode a file or a document in it; None, with a quarantine entry, if it is not text.

    UTF-8; UTF-16 and UTF-32 with a byte order mark; UTF-16 without one if zero bytes show it. Else
    Windows-1252 (counted) if it reads as a Western language. UTF-8 with single wrong bytes is
    damaged UTF-8, not Windows-1252. Other encodings are refused.

    Args:
        data: bytes of the file or document.
        tally: counters of the slice.
        offset: position of `data` in the file.
    """
    if not data.strip():
        tally.quarantine("empty_file", "the file is empty", offset=offset)
        return None
    encoding, mark = detect_unicode(data)
    if encoding:
        try:
            return data[len(mark) :].decode(encoding)
        except UnicodeDecodeError as error:
            position = offset + len(mark) + error.start
            reason = "bad_utf8" if encoding == "utf-8" else "bad_encoding"
            tally.quarantine(
                reason,
                f"the text begins as {encoding.upper()}, byte {position:,} does not fit",
                offset=position,
            )
            return None
    if b"\0" in data:
        position = offset + data.index(b"\0")
        tally.quarantine(
            "binary", f"the file holds a NUL at byte {position:,} and is no text", offset=position
        )
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        position = offset + error.start
        if _mostly_utf8(data):
            tally.quarantine(
                "bad_utf8", f"the text is UTF-8, but not at byte {position:,}", offset=position
            )
            return None
        if mark or not _is_western(data):
            tally.quarantine(
                "bad_encoding",
                f"the text is neither UTF-8 (see byte {position:,}) nor Windows-1252; convert it "
                f"(iconv -f ENCODING -t UTF-8)",
                offset=position,
            )
            return None
        tally.counters["encoding/windows-1252"] += 1
        return data.decode("cp1252")


def _is_western(data: bytes) -> bool:
    """Return True if all bytes are Windows-1252 characters and most letters are ASCII."""
    try:
        text = data.decode("cp1252")
    except UnicodeDecodeError:
        return False
    high_count = len(data) - len(data.translate(None, _HIGH))
    return text.translate(_NO_SPACE).isprintable() and high_count <= _MOST_HIGH * sum(
        map(str.isalpha, text)
    )


def _mostly_utf8(data: bytes) -> bool:
    """Return True if there are more multi-byte UTF-8 characters than invalid bytes."""
    text = data.decode("utf-8", "replace")
    invalid_count = text.count("\ufffd")
    return sum(character > "\x7f" for character in text) - invalid_count > invalid_count


# Paragraphs of text without markup, for jsonl, parquet, arrow, text and WARC conversions.

# A single <br> may be what the text is about.
_BREAK = re.compile(r"<br */>|<br>(?: *<br>)+", re.IGNORECASE)

_NARROWEST, _WIDEST = 40, 110  # characters; usual widths of wrapped lines
_FEWEST = 3  # lines needed to detect wrapping


def paragraphs(text: str) -> tuple[str, ...]:
    """Return the non-blank paragraphs of `text`, each on one line; `<br />` also ends a line."""
    lines = (_BREAK.sub("\n", text) if "<b" in text or "<B" in text else text).splitlines()
    if not _are_wrapped(lines):
        return tuple(line.strip() for line in lines if line.strip())
    width = max(len(line.rstrip()) for line in lines)
    joined: list[str] = []
    open_lines: list[str] = []
    for line in [*lines, ""]:
        stripped = line.strip()
        if open_lines and (not stripped or len(open_lines[-1]) <= width // 2):
            joined.append(" ".join(piece.strip() for piece in open_lines))
            open_lines = []
        if stripped:
            open_lines.append(line.rstrip())
    return tuple(joined)


def _are_wrapped(lines: list[str]) -> bool:
    """Return True if the lines are those of wrapped paragraphs.

    In wrapped text all lines but the last of a paragraph are full; in a list hardly any is.
    """
    lengths = [len(line.rstrip()) for line in lines if line.strip()]
    width = max(lengths, default=0)
    if len(lengths) < _FEWEST or not _NARROWEST <= width <= _WIDEST:
        return False
    are_full = [
        len(line.rstrip()) + 1 + len(next_line.split(maxsplit=1)[0]) > width
        for line, next_line in zip(lines[:-1], lines[1:], strict=True)
        if line.strip() and next_line.strip()
    ]
    return len(are_full) >= _FEWEST - 1 and sum(are_full) * 2 >= len(are_full)


def get_nested(record: Any, name: str) -> Any:
    """Return the value of a possibly nested field (`title`, `meta.title`); None if missing."""
    if not isinstance(record, dict):
        return None
    if name in record:
        return record[name]
    value: Any = record
    for key in name.split("."):
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return value
