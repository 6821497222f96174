"""Opening a source's file: unpacked by its name, and as UTF-8 whatever its byte order mark says."""

from __future__ import annotations

import codecs
from typing import IO

from pipeline.core import storage
from pipeline.corpus.readers.byte_source import ByteSource, Damaged
from pipeline.corpus.readers.sevenzip import SevenZip
from pipeline.corpus.readers.streams import FORMATS, Streams

FIRST_BYTES = 1 << 16


class _Plain:
    """A file that is not packed. Its first pieces are small: to make room for a megabyte takes longer than to read a small file."""

    def __init__(self, handle: IO[bytes]) -> None:
        self._handle, self._most = handle, FIRST_BYTES

    def read(self, size: int, /) -> bytes:
        data = self._handle.read(min(size, self._most))
        if len(data) == self._most:
            self._most *= 4
        return data

    def close(self) -> None:
        self._handle.close()


class Recoded:
    """Text of another encoding as UTF-8. What the encoding does not allow becomes U+FFFD."""

    def __init__(self, source: ByteSource, encoding: str, begin: bytes = b"") -> None:
        self._source, self._begin = source, begin
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._ended = False

    def read(self, size: int, /) -> bytes:
        while not self._ended:
            data, self._begin = (self._begin, b"") if self._begin else (self._source.read(max(4, size // 3)), b"")
            self._ended = not data
            text = self._decoder.decode(data, self._ended)
            if text:
                return text.encode("utf-8", "surrogatepass")
        return b""

    def close(self) -> None:
        self._source.close()


class _Begun:
    """A source of which the first bytes were read already, perhaps up to damage."""

    def __init__(self, source: ByteSource, begin: bytes, damage: Damaged | None = None) -> None:
        self._source, self._begin, self._damage = source, begin, damage

    def read(self, size: int, /) -> bytes:
        if self._begin:
            data, self._begin = self._begin[:size], self._begin[size:]
            return data
        if self._damage is not None:
            damage, self._damage = self._damage, None
            raise damage
        return self._source.read(size)

    def close(self) -> None:
        self._source.close()


_MARKS = ((codecs.BOM_UTF8, ""), (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
          (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))  # fmt: skip


def open_source(path: str, span: tuple[int, int] | None = None) -> ByteSource:
    """Open a file, unpacked by the ending of its name: `.bz2`, `.gz`, `.xz`, `.zst`, `.7z`, or as it is.

    Args:
        path: the file.
        span: bytes of the packed file, from the beginning of a stream to that of another; None: all of it.
    """
    if path.lower().endswith(".7z"):
        return SevenZip(path)
    return unpacked(path, storage.open_input(path), span)


def unpacked(name: str, handle: IO[bytes], span: tuple[int, int] | None = None) -> ByteSource:
    """An open file, unpacked by the ending of its name, as `open_source` does; `.tgz` is `.gz`. The source closes it."""
    name = name.lower()
    for ending, form in FORMATS.items():
        if name.endswith(ending) or (ending == ".gz" and name.endswith(".tgz")):
            return Streams(handle, form, *(span or (0, None)))
    return _Plain(handle)


def as_utf8(source: ByteSource) -> ByteSource:
    """The source as UTF-8, if a byte order mark says that it is UTF-16 or UTF-32; a mark of UTF-8 goes."""
    begin, damage = b"", None
    while len(begin) < 4:
        try:
            data = source.read(4096)
        except Damaged as error:
            damage = error
            break
        if not data:
            break
        begin += data
    for mark, encoding in _MARKS:
        if begin.startswith(mark):
            rest = begin[len(mark) :]
            begun = _Begun(source, rest, damage)
            return Recoded(begun, encoding) if encoding else begun
    return _Begun(source, begin, damage)


def peek(source: ByteSource, size: int) -> tuple[bytes, ByteSource]:
    """The first bytes of a source, at most `size`, and all of it to read; what is damaged there is told when it is read."""
    try:
        head = source.read(size)
    except Damaged as error:
        return b"", _Begun(source, b"", error)
    return head, _Begun(source, head)
