"""The members of a tar archive as they come, unpacked in flat memory, and only those that begin in a slice of the file.

A packed archive has one stream, so whoever reads a part of it unpacks all that stands before; but to unpack is some ten times cheaper
than to read what was unpacked, and nothing behind the slice is looked at.
"""

from __future__ import annotations

import re
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from typing import IO, Any, cast

from pipeline.core import storage
from pipeline.corpus.readers.base import Slice
from pipeline.corpus.readers.byte_source import ByteSource, Damaged
from pipeline.corpus.readers.unpack import unpacked

SLICE_BYTES = 256 << 20  # of a file, about
MOST_SLICES = 8  # of a file, since each unpacks it from its beginning
_BLOCK = 1 << 16  # bytes read of an archive at once; so many are lost before damage, at most
_IS_TAR = re.compile(rb".{257}ustar[\0 ]", re.DOTALL)


class Packed:
    """The unpacked bytes of a file, with the place in the file itself up to which it was read.

    Args:
        file_slice: with its span.
    """

    def __init__(self, file_slice: Slice) -> None:
        self._handle = storage.open_input(file_slice.path)
        self._source: ByteSource = unpacked(file_slice.path, self._handle)
        self._begin, self._end = file_slice.span or (0, file_slice.size + 1)

    def read(self, size: int, /) -> bytes:
        return self._source.read(size)

    @property
    def place(self) -> int:
        """-1 before the slice, 0 in it, 1 behind it: what was read last."""
        position = self._handle.tell()
        return -1 if position < self._begin else int(position >= self._end)

    def file(self) -> tuple[IO[bytes], int, int]:
        """The file as it lies there with the borders of the slice, for a format that is read by places; all that follows counts as in it."""
        borders = self._begin, self._end
        self._begin, self._end = 0, sys.maxsize
        return self._handle, *borders

    def close(self) -> None:
        self._source.close()


def cut(file_slice: Slice) -> list[Slice]:
    """A large file in a few slices of bytes, packed as it is. The documents are the same however it is cut."""
    count = min(MOST_SLICES, file_slice.size // SLICE_BYTES)
    if count < 2:
        return [file_slice]
    borders = [file_slice.size * number // count for number in range(count)]
    ends = [*borders[1:], file_slice.size + 1]  # the last bytes are read where nothing stands behind them
    return [
        replace(file_slice, span=(begin, end), size=min(end, file_slice.size) - begin)
        for begin, end in zip(borders, ends, strict=True)
    ]


def is_tar(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a tar archive."""
    return _IS_TAR.match(head) is not None


class _Member:
    """A file in an archive. Attributes: torn: whether nothing can be read of the archive any more."""

    def __init__(self, name: str, handle: Any) -> None:
        self._name, self._handle, self.torn = name, handle, False

    def read(self, size: int, /) -> bytes:
        if self.torn:
            return b""
        try:
            found: bytes = self._handle.read1(min(size, _BLOCK))  # what is there, and not all before damage
            return found
        except (Damaged, tarfile.TarError) as error:
            self.torn = True
            if isinstance(error, Damaged):
                raise
            raise Damaged("truncated", f"the archive ends inside its file {self._name}", 0) from error

    def close(self) -> None:
        self._handle.close()


def members(source: ByteSource) -> Iterator[tuple[str, int, ByteSource]]:
    """(name, bytes, content) of each file of an archive; the content is read before the next is asked for.

    Raises:
        Damaged: the archive cannot be read further.
    """
    try:
        with tarfile.open(fileobj=cast(IO[bytes], source), mode="r|", bufsize=_BLOCK) as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # of millions, tarfile would keep all
                handle = archive.extractfile(member) if member.isfile() else None
                if handle is not None:
                    content = _Member(member.name, handle)
                    yield member.name, member.size, content
                    if content.torn:
                        return
    except tarfile.TarError as error:
        raise Damaged("damaged", f"the archive cannot be read ({str(error).rstrip('.')})", 0) from error
