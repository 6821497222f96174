"""The members of a zip archive, in the order in which they lie in the file, and only those that begin in a slice of it.

Unlike a tar archive a zip is read by the directory at its end, and each member is packed by itself: a slice costs its own members alone,
and one that is damaged costs itself. The file must be one that can be read from any place.
"""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO

from pipeline.corpus.readers.byte_source import FREE_BYTES, MAXIMUM_RATIO, ByteSource, Damaged

_BLOCK = 1 << 16  # bytes unpacked at once
# a method that nobody knows is NotImplementedError, a password that is wanted RuntimeError
_ERRORS = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, NotImplementedError, RuntimeError)


def is_zip(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a zip archive that holds anything."""
    return head.startswith(b"PK\x03\x04")


class _Member:
    """A file in an archive."""

    def __init__(self, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
        self._archive, self._entry = archive, entry
        self._handle: IO[bytes] | None = None
        self._unpacked, self._ended = 0, False

    def read(self, size: int, /) -> bytes:
        if self._ended:
            return b""
        try:
            if self._handle is None:
                self._handle = self._archive.open(self._entry)
            found = self._handle.read(min(size, _BLOCK))
        except _ERRORS as error:
            raise self._torn("damaged", f"cannot be unpacked ({str(error).rstrip('.')})") from error
        self._unpacked += len(found)
        if self._unpacked > FREE_BYTES and self._unpacked > MAXIMUM_RATIO * self._entry.compress_size:
            raise self._torn("bomb", f"unpacks to more than {MAXIMUM_RATIO} times its size; no text does")
        return found

    def _torn(self, reason: str, sentence: str) -> Damaged:
        self._ended = True
        return Damaged(reason, f"the archive's file {self._entry.filename} {sentence}", self._entry.header_offset)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()


def members(handle: IO[bytes], begin: int, end: int) -> Iterator[tuple[str, int, ByteSource]]:
    """(name, bytes, content) of each file of an archive that begins between two bytes of it.

    Raises:
        Damaged: the directory of the archive cannot be read, by whoever reads its beginning.
    """
    try:
        archive = zipfile.ZipFile(handle)
    except _ERRORS as error:
        if begin:
            return
        raise Damaged(
            "damaged", f"the archive's directory, at its end, cannot be read ({str(error).rstrip('.')})", 0
        ) from error
    with archive:
        for entry in sorted(archive.infolist(), key=lambda entry: entry.header_offset):
            if begin <= entry.header_offset < end and not entry.is_dir():
                content = _Member(archive, entry)
                yield entry.filename, entry.file_size, content
                content.close()
