"""Text from files: lines, decoding, paragraphs; and source `text`.

A document of source `text` is a file or, with `blank_line_documents`, a block between blank lines.
Such blocks are the format of google-research/bert: one sentence per line. Each line is then a
paragraph. Other readers use the functions for lines, decoding and paragraphs.
"""

from __future__ import annotations

import contextlib
import itertools
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cloze.core.words import CLUSTERS, IDEOGRAPHS, MAY_BE_UNSPACED, TSHEG, UNSPACED_LETTER, width
from cloze.pipeline.corpus.document import OTHER_SCRIPTS, Document
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.readers import encodings
from cloze.pipeline.corpus.readers.base import (
    Documents,
    FileReader,
    ReadCounters,
    Slice,
    file_patterns,
    has_expected_type,
)
from cloze.pipeline.corpus.readers.encodings import detect_unicode
from cloze.pipeline.corpus.readers.streams import (
    ByteSource,
    CorruptStreamError,
    as_utf8,
    open_source,
    peek,
)

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its end."""

    offset: int  # start in bytes of the decompressed file as UTF-8
    data: bytes | None  # bytes; None if longer than the limit
    size: int  # length in bytes


def read_lines(
    source: ByteSource, limit: int, record_damage: Callable[..., None]
) -> Iterator[Line]:
    """Yield the lines of `source`. Lines interrupted by damage are left out and reported.

    After damage, reading continues with the next stream, which is assumed to begin with a line.

    Args:
        source: decompressed bytes.
        limit: maximum bytes of a line in memory.
        record_damage: function with the arguments of `ReadCounters.record_damage`.
    """
    open_pieces: list[bytes] = []  # of the open line
    size = discarded = 0  # bytes of the open line: in `open_pieces`; discarded
    offset = 0  # of the open line
    while True:
        try:
            chunk = source.read(_CHUNK)
        except CorruptStreamError as error:
            record_damage(error.reason, str(error), offset=error.offset)
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


# Decoding of whole files or documents.

_END_OF_FILE = "\x1a"  # ends a CP/M text
# Bytes that are not UTF-8, as `surrogateescape` shows them, and their characters in Windows-1252.
_ESCAPED = re.compile("[\udc80-\udcff]")
_REPAIRED = {
    0xDC00 + code: character
    for code in range(0x80, 0xFF)
    if (character := bytes([code]).decode("cp1252", "ignore"))
}
_MOST_REPAIRED = 0.1  # share of the characters of several bytes


def decode(data: bytes, tally: ReadCounters, *, offset: int = 0) -> str | None:
    """Decode a file or a document in it; None, with a quarantine entry, if it is not text.

    UTF-8; UTF-16 and UTF-32 with a byte order mark; UTF-16 without one if zero bytes show it; any
    other encoding if it is sure (encodings.py). A character that the end of the file cuts is left
    out. Single bytes in UTF-8 are read as Windows-1252. All but whole UTF-8 is counted.

    Args:
        offset: position of `data` in the file.
    """
    unicode, mark = detect_unicode(data)
    content = data[len(mark) if unicode else 0 :]
    position, candidates = 0, tuple[str, ...]()
    if not data.strip():
        reason, sentence = "empty_file", "the file is empty"
    elif not unicode and b"\0" in data:
        position = data.index(b"\0")
        reason = "binary"
        sentence = f"the file holds a NUL at byte {offset + position:,} and is no text"
    else:
        text, position = _decode_unicode(content, unicode or "utf-8", tally)
        encoding = ""
        if text is None and not mark:
            encoding, candidates = encodings.detect(content)
            if not encoding:  # the last character may be cut
                encoding = encodings.detect(content[:-1]).encoding
        elif text is not None and text.isascii():
            encoding = encodings.shifted(content)
        if encoding:
            text = encodings.decode(content, encoding) or None
            if text is None and (text := encodings.decode(content, encoding, final=False) or None):
                tally.drop_lines("cut_character")
            tally.counters[f"encoding/{encoding}"] += text is not None
        if text is not None:
            return text.rstrip(_END_OF_FILE)
        position += len(data) - len(content)
        place = f"byte {offset + position:,}"
        if unicode or _mostly_utf8(data):
            reason = "bad_encoding" if unicode not in ("", "utf-8") else "bad_utf8"
            sentence = f"the text begins as {(unicode or 'utf-8').upper()}, {place} does not fit"
        else:
            reason = "bad_encoding"
            perhaps = f" (perhaps {', '.join(candidates)})" if candidates else ""
            sentence = (
                f"the text is neither UTF-8 (see {place}) nor surely of another encoding{perhaps}; "
                f"convert it (iconv -f ENCODING -t UTF-8)"
            )
    tally.quarantine(reason, sentence, offset=offset + position)
    return None


def _decode_unicode(data: bytes, encoding: str, tally: ReadCounters) -> tuple[str | None, int]:
    """Return the text, or None and the first byte that does not fit; count what is repaired."""
    try:
        return data.decode(encoding), 0
    except UnicodeDecodeError as error:
        text = data[: error.start].decode(encoding)
        is_cut = "end of data" in error.reason or "truncated" in error.reason
        # at the end of ASCII it may be a letter of another encoding
        if is_cut and (encoding != "utf-8" or not text.isascii()):
            tally.drop_lines("cut_character")
            return text, 0
        if encoding == "utf-8":
            text = data.decode("utf-8", "surrogateescape")
            invalid_count = len(_ESCAPED.findall(text))
            valid_count = sum(map("\x7f".__lt__, text)) - invalid_count
            text = text.translate(_REPAIRED)
            if invalid_count <= _MOST_REPAIRED * valid_count and not _ESCAPED.search(text):
                tally.counters["encoding/utf-8 with windows-1252"] += 1
                return text, 0
        return None, error.start


def _mostly_utf8(data: bytes) -> bool:
    """Return True if there are more multi-byte UTF-8 characters than invalid bytes."""
    text = data.decode("utf-8", "replace")
    invalid_count = text.count("\ufffd")
    return sum(character > "\x7f" for character in text) - invalid_count > invalid_count


# Paragraphs of text without markup, for jsonl, parquet, arrow, text and WARC conversions.

# A single <br> may be what the text is about.
_BREAK = re.compile(r"<br */>|<br>(?: *<br>)+", re.IGNORECASE)

_NARROWEST, _WIDEST = 40, 110  # columns; usual widths of wrapped lines
_RAGGED = 6  # columns that a full line lacks in scripts without spaces: marks do not begin a line
_FEWEST = 3  # lines needed to detect wrapping
_MARKS = "\u3001-\u303f\uff01-\uff60"  # of Chinese and Japanese
_UNSPACED = f"[{IDEOGRAPHS}{CLUSTERS}{_MARKS}]"  # lines also break before these
# Ends of lines that stand for no blank: between letters of a script without spaces, beside a
# Chinese or Japanese mark, between an ideograph and a number, after a Tibetan syllable.
_UNSPACED_END = re.compile(
    f"({UNSPACED_LETTER.pattern})\n(?={_UNSPACED})|([{_MARKS}{TSHEG}\u200b])\n|\n(?=[{_MARKS}\u200b])"
    f"|(?<=[{IDEOGRAPHS}])\n(?=\\d)|(?<=\\d)\n(?=[{IDEOGRAPHS}])"
)
FIRST_UNIT = re.compile(rf"{_UNSPACED}|(?:(?!{_UNSPACED})\S)+")
"""First word of a line, or its first letter in a script without spaces."""


def paragraphs(text: str) -> tuple[str, ...]:
    """Return the non-blank paragraphs of `text`, each on one line; `<br />` also ends a line."""
    text = _BREAK.sub("\n", text) if "<b" in text or "<B" in text else text
    lines = [line.rstrip() for line in text.splitlines()]
    if not are_wrapped(lines):
        return tuple(line.strip() for line in lines if line)
    widest = max(map(width, lines))
    joined: list[str] = []
    open_lines: list[str] = []
    for line in [*lines, ""]:
        if open_lines and (not line or width(open_lines[-1]) <= widest // 2):
            joined.append(join_lines(open_lines))
            open_lines = []
        if line:
            open_lines.append(line)
    return tuple(joined)


def join_lines(lines: Iterable[str]) -> str:
    """Join the lines of a paragraph, by a blank where the script has one."""
    text = "\n".join(map(str.strip, lines))
    if not text.isascii() and MAY_BE_UNSPACED.search(text):
        text = _UNSPACED_END.sub(r"\1\2", text)
    return text.replace("\n", " ")


def are_wrapped(lines: list[str]) -> bool:
    """Return True if the lines are those of wrapped paragraphs.

    In wrapped text all lines but the last of a paragraph are full; in a list hardly any is. In
    scripts without spaces the longest line always seems full, and few wrapped lines end in an end
    mark.
    """
    columns = [width(line) for line in lines]
    widest = max(columns, default=0)
    if sum(map(bool, lines)) < _FEWEST or not _NARROWEST <= widest <= _WIDEST:
        return False
    has_unspaced = False
    are_full: list[bool] = []
    for (line, next_line), column in zip(itertools.pairwise(lines), columns, strict=False):
        if line and (unit := FIRST_UNIT.search(next_line)):
            is_unspaced = re.match(_UNSPACED, unit[0]) is not None
            has_unspaced |= is_unspaced
            is_end = is_unspaced and line[-1] in OTHER_SCRIPTS
            end = column + width(unit[0]) + (_RAGGED if is_unspaced else 1)
            are_full.append(end > widest and not is_end)
    return len(are_full) >= _FEWEST - 1 and sum(are_full) * 2 >= len(are_full) + has_unspaced


# Source `text`.


class PlainTextOptions(CorpusOptions):
    """Options of source `text`."""

    blank_line_documents: bool = False
    """With source text: a blank line ends a document. Default: one document per file."""


class TextReader(FileReader):
    """Reader of documents `text/<relative file name>[/<number from 1>]`."""

    kind = "text"
    options = PlainTextOptions
    patterns = file_patterns(".txt", ".text", ".tokens", ".raw")

    def read(self, file_slice: Slice, options: PlainTextOptions, tally: ReadCounters) -> Documents:
        """Yield the documents of one file."""
        if options.blank_line_documents:
            yield from self._between_blank_lines(file_slice, options, tally)
            return
        data = read_whole(file_slice, options, tally)
        if data is None or (text := decode(data, tally)) is None:
            return
        tally.read(len(data))
        title = posixpath.basename(file_slice.name).partition(".")[0].replace("_", " ")
        yield Document(
            id=f"{self.kind}/{file_slice.name}",
            source=self.kind,
            title=title,
            paragraphs=paragraphs(text),
        )

    def _between_blank_lines(
        self, file_slice: Slice, options: CorpusOptions, tally: ReadCounters
    ) -> Documents:
        lines: list[bytes] = []
        number = size = start = 0

        def finish() -> Documents:
            nonlocal number
            if not size:
                return
            number += 1
            if size > options.maximum_document_bytes:
                tally.drop_too_long(size, f"the document at byte {start:,}", offset=start)
                return
            text = decode(b"\n".join(lines), tally, offset=start)
            if text is not None:
                tally.read(size)
                yield Document(
                    id=f"{self.kind}/{file_slice.name}/{number}",
                    source=self.kind,
                    title="",
                    paragraphs=tuple(line.strip() for line in text.split("\n") if line.strip()),
                )

        with contextlib.closing(open_source(file_slice.path)) as source:
            head, unpacked = peek(as_utf8(source))
            if not has_expected_type(head, tally):
                return
            for line in read_lines(unpacked, options.maximum_document_bytes, tally.record_damage):
                if line.data is not None and not line.data.strip():
                    yield from finish()
                    lines, size = [], 0
                    continue
                start = start if size else line.offset
                size += line.size + 1
                if size <= options.maximum_document_bytes and line.data is not None:
                    lines.append(line.data)
                else:
                    lines = []
            yield from finish()
        if not number and not tally.unreadable:
            tally.quarantine("empty_file", "the file is empty")


def read_whole(file_slice: Slice, options: CorpusOptions, tally: ReadCounters) -> bytes | None:
    """Return the bytes of a file that is one document.

    None, with a quarantine entry, if it is damaged, not text, or longer than the limit.
    """
    data = bytearray()
    limit = options.maximum_document_bytes
    try:
        with contextlib.closing(open_source(file_slice.path)) as source:
            while len(data) <= limit:
                chunk = source.read(_CHUNK)
                if not data and not has_expected_type(chunk, tally):
                    return None
                if not chunk:
                    return bytes(data)
                data += chunk
    except CorruptStreamError as error:
        tally.record_damage(error.reason, str(error), offset=error.offset)
        return None
    tally.quarantine(
        "too_large", f"the file has more than {limit:,} bytes of text, and is no single document"
    )
    return None


reader = TextReader()
