"""Byte streams of sources: decompression with recovery, and other Unicode forms as UTF-8."""

from __future__ import annotations

import bz2
import codecs
import lzma
import posixpath
import re
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Protocol, TypeAlias

from cloze.core import storage
from cloze.pipeline.corpus.readers.encodings import SAMPLE_BYTES, detect_unicode

if TYPE_CHECKING:
    from backports import zstd

    _Decompressor: TypeAlias = (
        "bz2.BZ2Decompressor | lzma.LZMADecompressor | zstd.ZstdDecompressor | _Gzip"
    )

FREE_BYTES = 64 << 20  # decompressed bytes of a stream before the ratio is checked
# decompressed to compressed; full-history dumps, the most repetitive texts, stay below 200
MAXIMUM_RATIO = 250


class CorruptStreamError(Exception):
    """A stream cannot be decompressed further; the next read returns the next stream."""

    def __init__(self, reason: str, sentence: str, offset: int) -> None:
        super().__init__(sentence)
        self.reason = reason  # truncated, damaged or bomb
        self.offset = offset  # start of the stream, in bytes of the compressed file


class ByteSource(Protocol):
    """Interface of the byte streams that readers read from."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, none at the end.

        Raises:
            CorruptStreamError: once for each unreadable stream.
        """

    def close(self) -> None: ...


# Unknown compression methods raise NotImplementedError, encrypted files RuntimeError.
_Errors = tuple[type[Exception], ...]
_UNPACKING: _Errors = (zlib.error, lzma.LZMAError, EOFError, OSError, ValueError)
ZIP_ERRORS: _Errors = (*_UNPACKING, zipfile.BadZipFile, RuntimeError)

# Decompression of `.bz2`, `.gz`, `.xz` and `.zst` in bounded memory: all streams of a file, with
# recovery after damage and protection against decompression bombs.

_CHUNK = 1 << 16  # compressed bytes per read
_XZ_MEMORY = 1 << 30  # maximum dictionary bytes of a stream


class _Gzip:
    """Adapter of zlib's decompressor to the interface of the others."""

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
        pending = self._inner.unconsumed_tail
        output = self._inner.decompress(pending + data if pending else data, max_length)
        self.needs_input = not self._inner.unconsumed_tail and len(output) < max_length
        return output


def _zstd() -> _Decompressor:
    from backports import zstd

    # Archives made with `--long=31` are common; memory for the window is used only as it fills.
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: 31})


@dataclass(frozen=True, slots=True)
class StreamFormat:
    """Compression format of a stream."""

    make: Callable[[], _Decompressor]
    magic: re.Pattern[bytes]  # first bytes of a stream


FORMATS = {
    ".bz2": StreamFormat(bz2.BZ2Decompressor, re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")),
    ".gz": StreamFormat(_Gzip, re.compile(rb"(?s)\x1f\x8b\x08[\0-\x1f].{4}[\0\2\4][\0-\r\xff]")),
    ".xz": StreamFormat(
        lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY), re.compile(rb"\xfd7zXZ\x00")
    ),
    ".zst": StreamFormat(_zstd, re.compile(rb"\x28\xb5\x2f\xfd")),
}
_LONGEST_MAGIC = 10
# Compressed bytes that a decompressor may read before it detects damage: bzip2 blocks have up to
# 900 kB, zstd frames 128 kB.
_LATE = 4 << 20


def _errors() -> tuple[type[Exception], ...]:
    from backports import zstd

    return *_UNPACKING, zstd.ZstdError


class Streams:
    """Decompressed bytes of all streams in a range of a compressed file.

    Args:
        handle: compressed file; `close` closes it.
        form: compression format of the file.
        begin, end: range of the compressed file; `begin` is the first byte of a stream.
    """

    def __init__(
        self, handle: IO[bytes], form: StreamFormat, begin: int = 0, end: int | None = None
    ) -> None:
        self._handle, self._form, self._end = handle, form, end
        self._position = begin  # compressed bytes read
        self._waiting = b""  # compressed bytes not yet given to the decompressor
        self._decompressor: _Decompressor | None = None
        self._head = b""  # first bytes of the open stream
        self.start = begin  # first byte of the open stream in the compressed file
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
            decompressor = self._decompressor or self._open()
            if decompressor is None:
                return b""
            data = b""
            if decompressor.needs_input:
                data, self._waiting = self._waiting or self._more(), b""
                if not data:  # or it was damaged and took the streams after it for its own
                    raise self._fail("truncated", "the file ends inside a compressed stream")
            try:
                output = decompressor.decompress(data, size)
            except self._errors as error:
                cause = str(error).rstrip(".")
                if not self.start and not self._form.magic.match(self._head):
                    cause = "it begins otherwise than its ending says: rename it"
                sentence = f"a compressed stream cannot be unpacked ({cause})"
                raise self._fail("damaged", sentence) from error
            self._unpacked += len(output)
            compressed_size = self._position - self.start
            if self._unpacked > max(FREE_BYTES, MAXIMUM_RATIO * compressed_size):
                ratio = self._unpacked // compressed_size
                message = f"a compressed stream unpacks to more than {ratio} times its size"
                raise self._fail("bomb", f"{message}; no text does")
            if decompressor.eof:
                self._waiting, self._decompressor = decompressor.unused_data, None
            if output:
                return output

    def _fail(self, reason: str, sentence: str) -> CorruptStreamError:
        """Skip the open stream; return the error to raise."""
        error = CorruptStreamError(reason, sentence, self.start)
        self._skip()
        return error

    def _open(self) -> _Decompressor | None:
        """Open the next stream, skipping padding; return None at the end."""
        while not (data := self._waiting.lstrip(b"\0")):
            self._waiting = self._more()
            if not self._waiting:
                return None
        self._waiting, self._unpacked, self._head = data, 0, data[:_LONGEST_MAGIC]
        self.start = self._position - len(data)
        self._decompressor = self._form.make()
        return self._decompressor

    def _skip(self) -> None:
        """Skip to the next stream after the open one.

        The decompressor may detect a gap only inside the next stream, so the search begins
        _LATE bytes earlier.
        """
        self._decompressor = None
        self._position = max(self.start + 1, self._position - _LATE)
        self._handle.seek(self._position)
        data = b""
        while chunk := self._more():
            data = data[-_LONGEST_MAGIC:] + chunk
            if match := self._form.magic.search(data):
                self._waiting = data[match.start() :]
                return
        self._waiting = b""


# Opening of source files: decompressed by file name, and converted to UTF-8.

_FIRST_BYTES = 1 << 16
_FEWEST_BYTES = 64  # needed to detect UTF-16 without a mark


class _Plain:
    """An uncompressed file, or a range of its bytes; the first reads are small, as allocating 1 MiB
    takes long.
    """

    def __init__(self, handle: IO[bytes], begin: int = 0, end: int = sys.maxsize) -> None:
        self._handle, self._most, self._left = handle, _FIRST_BYTES, end - begin
        if begin:
            handle.seek(begin)

    def read(self, size: int, /) -> bytes:
        data = self._handle.read(min(size, self._most, self._left))
        self._left -= len(data)
        if len(data) == self._most:
            self._most *= 4
        return data

    def close(self) -> None:
        self._handle.close()


class Utf8Transcoder:
    """Text of another encoding as UTF-8; invalid input becomes U+FFFD."""

    def __init__(self, source: ByteSource, encoding: str) -> None:
        self._source = source
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._ended = False

    def read(self, size: int, /) -> bytes:
        while not self._ended:
            data = self._source.read(max(4, size // 3))
            self._ended = not data
            text = self._decoder.decode(data, self._ended)
            if text:
                return text.encode("utf-8", "surrogatepass")
        return b""

    def close(self) -> None:
        self._source.close()


class _PeekedSource:
    """A source whose first bytes were already read, perhaps up to damage."""

    def __init__(self, source: ByteSource, begin: bytes, damage: CorruptStreamError | None) -> None:
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


def open_source(path: str, span: tuple[int, int] | None = None) -> ByteSource:
    """Open a file, decompressed by its ending: `.bz2`, `.gz`, `.xz`, `.zst`, or unchanged.

    Args:
        span: byte range of the file as it is stored, if compressed from the start of a stream to
            that of another; None: all.
    """
    return unpacked(path, storage.open_input(path, span and span[1]), span)


def unpacked(name: str, handle: IO[bytes], span: tuple[int, int] | None = None) -> ByteSource:
    """Return an open file, decompressed by its ending; `.tgz` counts as `.gz`.

    The source closes it.
    """
    form = _form(name)
    return Streams(handle, form, *(span or (0, None))) if form else _Plain(handle, *(span or ()))


def _form(name: str) -> StreamFormat | None:
    return FORMATS.get(posixpath.splitext(name.lower())[1].replace(".tgz", ".gz"))


def is_packed(name: str) -> bool:
    """Return True if the file is compressed, by its ending."""
    return _form(name) is not None


def as_utf8(source: ByteSource) -> ByteSource:
    """Return the source as UTF-8 if it is UTF-16 or UTF-32; remove a UTF-8 mark."""
    head, whole = peek(source, _FEWEST_BYTES)
    encoding, mark = detect_unicode(head)
    if encoding:
        whole.read(len(mark))
    return Utf8Transcoder(whole, encoding) if encoding not in ("", "utf-8") else whole


def peek(source: ByteSource, least: int = 1) -> tuple[bytes, ByteSource]:
    """Return the first bytes of a source, and the whole source.

    Damage among these bytes is raised when the returned source is read.

    Args:
        least: number of bytes after which no further read follows.
    """
    head, damage = b"", None
    while len(head) < least:
        try:
            data = source.read(SAMPLE_BYTES)
        except CorruptStreamError as error:
            damage = error
            break
        if not data:
            break
        head += data
    return head, _PeekedSource(source, head, damage)
