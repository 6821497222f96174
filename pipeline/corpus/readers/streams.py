"""Reading `.bz2`, `.gz`, `.xz` and `.zst` in flat memory: every stream of a file, past damage, and never a bomb.

A file may consist of several streams, one after the other (multistream dumps, WARC files with a member a record,
concatenated logs). All four formats are read by one loop over their decompressors, so that they behave alike: where a stream is
damaged, `Damaged` tells the byte, and reading goes on with the next stream.
"""

from __future__ import annotations

import bz2
import lzma
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Protocol

from pipeline.corpus.readers.byte_source import FREE_BYTES, MAXIMUM_RATIO, Damaged

_CHUNK = 1 << 16  # packed bytes read at once
_XZ_MEMORY = 1 << 30  # bytes that a stream may ask for its dictionary


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gzip:
    """zlib's object with the manners of the others."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        waiting = self._inner.unconsumed_tail
        found = self._inner.decompress(waiting + data if waiting else data, max_length)
        self.needs_input = not self._inner.unconsumed_tail and len(found) < max_length
        return found


def _zstd() -> _Decompressor:
    from backports import zstd

    # Archives packed with `--long=31` are common; their window is taken from memory only as far as it is filled.
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: 31})


@dataclass(frozen=True, slots=True)
class StreamFormat:
    make: Callable[[], _Decompressor]
    magic: re.Pattern[bytes]  # how a stream begins


FORMATS = {
    ".bz2": StreamFormat(bz2.BZ2Decompressor, re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")),
    ".gz": StreamFormat(_Gzip, re.compile(rb"\x1f\x8b\x08[\x00-\x1f].{4}[\x00\x02\x04][\x00-\x0d\xff]", re.DOTALL)),
    ".xz": StreamFormat(lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY), re.compile(rb"\xfd7zXZ\x00")),
    ".zst": StreamFormat(_zstd, re.compile(rb"\x28\xb5\x2f\xfd")),
}
_LONGEST_MAGIC = 10
_LATE = 4 << 20  # packed bytes after which damage has shown itself: a block of bzip2 has at most 900 kB, a frame of zstd 128


def _errors() -> tuple[type[Exception], ...]:
    from backports import zstd

    return EOFError, OSError, ValueError, zlib.error, lzma.LZMAError, zstd.ZstdError


class Streams:
    """The unpacked bytes of all streams between two bytes of a packed file.

    Args:
        handle: the packed file; closed with this object.
        form: its format.
        begin, end: bytes of the packed file that are read; `begin` is the first byte of a stream.
    """

    def __init__(self, handle: IO[bytes], form: StreamFormat, begin: int = 0, end: int | None = None) -> None:
        self._handle, self._form, self._end = handle, form, end
        self._position = begin  # of the packed file, up to where it was read
        self._waiting = b""  # packed bytes not yet given to the decompressor
        self._decompressor: _Decompressor | None = None
        self._start = begin  # of the open stream
        self._unpacked = 0  # bytes of the open stream
        self._errors = _errors()
        if begin:
            handle.seek(begin)

    def close(self) -> None:
        self._handle.close()

    def _more(self) -> bytes:
        size = _CHUNK if self._end is None else min(_CHUNK, self._end - self._position)
        data = self._handle.read(size) if size > 0 else b""
        self._position += len(data)
        return data

    def read(self, size: int, /) -> bytes:
        while True:
            if self._decompressor is None and not self._open():
                return b""
            decompressor = self._decompressor
            assert decompressor is not None
            data = b""
            if decompressor.needs_input:
                data, self._waiting = self._waiting or self._more(), b""
                if not data:
                    self._decompressor = None
                    raise Damaged("truncated", "the file ends inside a compressed stream", self._start)
            try:
                found = decompressor.decompress(data, size)
            except self._errors as error:
                where = self._start
                self._skip()
                raise Damaged("damaged", f"a compressed stream cannot be unpacked ({str(error).rstrip('.')})", where) from error
            self._unpacked += len(found)
            packed = self._position - self._start
            if self._unpacked > FREE_BYTES and self._unpacked > MAXIMUM_RATIO * packed:
                where, ratio = self._start, self._unpacked // packed
                self._skip()
                raise Damaged("bomb", f"a compressed stream unpacks to more than {ratio} times its size; no text does", where)
            if decompressor.eof:
                self._waiting, self._decompressor = decompressor.unused_data, None
            if found:
                return found

    def _open(self) -> bool:
        """Begin the next stream; False where there is none. Padding between streams is passed over."""
        while not self._waiting.lstrip(b"\0"):
            self._waiting = self._more()
            if not self._waiting:
                return False
        self._waiting = self._waiting.lstrip(b"\0")
        self._start = self._position - len(self._waiting)
        self._unpacked = 0
        self._decompressor = self._form.make()
        return True

    def _skip(self) -> None:
        """Go to the beginning of the next stream after the open one.

        A stream with a hole is found out only some time after the hole, perhaps inside the next one: so the search goes back.
        """
        self._decompressor = None
        self._position = max(self._start + 1, self._position - _LATE)
        self._handle.seek(self._position)
        data = b""
        while more := self._more():
            data = data[-_LONGEST_MAGIC:] + more
            found = self._form.magic.search(data)
            if found:
                self._waiting = data[found.start() :]
                return
        self._waiting = b""
