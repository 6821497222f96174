"""Reading `.7z` archives, the form in which Wikimedia gives away full histories, as one stream in flat memory.

py7zr unpacks into an object that it writes to; a thread of its own lets readers pull instead. Nothing is unpacked to disk, so
that names with `../` and links lead nowhere; they are refused all the same. The regular files of an archive are read
one after the other.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING

from pipeline.core import storage
from pipeline.corpus.readers.byte_source import FREE_BYTES, MAXIMUM_RATIO, Damaged

if TYPE_CHECKING:
    from py7zr.io import Py7zIO, WriterFactory

_PIECES = 16  # waiting between unpacking and reading; py7zr writes some 32 kB at once
_WAIT = 0.5  # seconds


class _Closed(Exception):
    """Nobody reads any more."""


class SevenZip:
    """The unpacked bytes of an archive's files.

    Args:
        path: the archive.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._size = int(storage.stat(path)["size"] or 0)
        self._queue: queue.Queue[bytes | Damaged | None] = queue.Queue(_PIECES)
        self._closed = threading.Event()
        self._left = b""
        self._unpacked = 0
        self._ended = False
        self._thread: threading.Thread | None = None

    def read(self, size: int, /) -> bytes:
        if self._thread is None:
            self._thread = threading.Thread(target=self._unpack, name="7z", daemon=True)
            self._thread.start()
        if not self._left and not self._ended:
            found = self._queue.get()
            if not isinstance(found, bytes):
                self._ended = True
                if found is not None:
                    raise found
            else:
                self._left = found
        data, self._left = self._left[:size], self._left[size:]
        return data

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def write(self, data: bytes) -> None:
        """One more piece, from the thread that unpacks."""
        self._unpacked += len(data)
        if self._unpacked > FREE_BYTES and self._unpacked > MAXIMUM_RATIO * self._size:
            raise Damaged("bomb", f"the archive unpacks to more than {MAXIMUM_RATIO} times its size; no text does", 0)
        self._put(data)

    def _put(self, item: bytes | Damaged | None) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(item, timeout=_WAIT)
                return
        raise _Closed

    def _unpack(self) -> None:
        end: Damaged | None = None
        try:
            self._extract()
        except _Closed:
            return
        except Damaged as error:
            end = error
        except Exception as error:  # py7zr lets through whatever its decompressors raise on hostile bytes
            end = Damaged("damaged", f"the archive cannot be unpacked ({str(error).rstrip('.') or type(error).__name__})", 0)
        with contextlib.suppress(_Closed):
            self._put(end)

    def _extract(self) -> None:
        import py7zr

        with storage.open_input(self._path) as handle, py7zr.SevenZipFile(handle, "r") as archive:
            if archive.needs_password():
                raise Damaged("damaged", "the archive is encrypted", 0)
            names = [
                entry.filename for entry in archive.files if not (entry.is_directory or entry.is_symlink or entry.is_junction)
            ]
            if not names:
                raise Damaged("damaged", "the archive holds no file", 0)
            archive.extract(targets=names, factory=_factory(self))


def _factory(target: SevenZip) -> WriterFactory:
    """What py7zr wants to write to, made where py7zr is imported already."""
    from py7zr.io import Py7zIO, WriterFactory

    class Writer(Py7zIO):
        def __init__(self) -> None:
            self._size = 0

        def write(self, s: bytes | bytearray) -> int:
            target.write(bytes(s))
            self._size += len(s)
            return len(s)

        def read(self, size: int | None = None) -> bytes:
            return b""

        def seek(self, offset: int, whence: int = 0) -> int:
            return offset

        def flush(self) -> None:
            pass

        def size(self) -> int:
            return self._size

    class Factory(WriterFactory):
        def create(self, filename: str) -> Py7zIO:
            return Writer()

    return Factory()
