"""Arrow IPC files on any storage: mapped from a local disk, read whole from a store."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import hashlib
import mmap
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib.abc import MetaPathFinder
from typing import IO

import pyarrow as pa

from cloze.core import storage
from cloze.core.artifacts.lock import flock_or_say, has_name
from cloze.core.errors import ClozeError, DataError, UsageError, first_line

STALL_SECONDS = 600.0  # that another process may hold a copy whose file does not change
REBUILD = "run the stage that makes it again"


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ImportError(fullname)


def spare_pandas() -> None:
    """Let this process make Arrow arrays without pandas, whose import takes .25 s and 38 MB.

    pyarrow looks for pandas once, at the first array. A later conversion to or from pandas imports
    it all the same.
    """
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


@contextlib.contextmanager
def arrow_errors_as_data_errors(path: str, remedy: str) -> Iterator[None]:
    """Convert Arrow's errors to a `DataError` that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is damaged ({first_line(error)}); {remedy}") from error


def file_buffer(path: str) -> pa.Buffer:
    """Return the bytes of a file: a mapping without a file descriptor if local, else in memory.

    Raises DataError: the file does not exist or cannot be read.
    """
    if not storage.is_local(path):
        try:
            return pa.py_buffer(storage.read_at_once(path))
        except FileNotFoundError as error:
            raise DataError(f"{path} does not exist; {REBUILD}") from error
    if not storage.exists(path):
        raise DataError(f"{path} does not exist; {REBUILD}")
    with arrow_errors_as_data_errors(path, REBUILD):
        if not os.path.getsize(storage.filesystem(path)[1]):
            raise DataError(f"{path} is empty; {REBUILD}")
        with pa.memory_map(storage.filesystem(path)[1]) as mapped:
            return mapped.read_buffer()


def open_arrow(path: str) -> pa.RecordBatchFileReader:
    """Open the Arrow IPC file at `path`; raise `DataError` if it is missing or damaged."""
    buffer = file_buffer(path)
    with arrow_errors_as_data_errors(path, REBUILD):
        return pa.ipc.open_file(pa.BufferReader(buffer))


def read_arrow(path: str) -> pa.Table:
    """Read the Arrow IPC file at `path`; raise `DataError` if it is missing or damaged."""
    reader = open_arrow(path)
    with arrow_errors_as_data_errors(path, REBUILD):
        return reader.read_all()


def write_arrow(
    path: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], compression: str | None = None
) -> None:
    """Write an Arrow IPC file, completely or not at all.

    Args:
        batches: record batches, which may be generated while the file is written.
        compression: zstd or lz4, for buffers. Uncompressed files can be memory-mapped.
    """
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (
        storage.atomic_output(path) as handle,
        pa.ipc.new_file(handle, schema, options=options) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)


def drop_page_cache(buffer: pa.Buffer) -> None:
    """Release the pages of a mapped file; they are read again on access.

    Keeps the reported memory of a worker flat, however much it has read.
    """
    if sys.platform.startswith("linux") and buffer.size:
        # madvise takes whole pages only.
        start = buffer.address - buffer.address % mmap.PAGESIZE
        length = buffer.address + buffer.size - start
        _libc().madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_DONTNEED)


def release_memory_to_os() -> None:
    """Return freed memory of Arrow and of the C library to the operating system.

    Both keep freed memory for reuse, so a worker's memory grows over units of unequal sizes.
    """
    pa.default_memory_pool().release_unused()
    trim = getattr(_libc(), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@functools.cache
def _copies(stamp: str) -> str:
    """Return the directory of copies that this machine's processes share; the last one removes it.

    A process uses the directory as long as it holds the shared lock on the file `_users`. The next
    process to start removes the directories of killed processes.
    """
    base = os.path.join(tempfile.gettempdir(), f"cloze-copies-{os.getuid()}")
    os.makedirs(base, mode=0o700, exist_ok=True)
    if os.stat(base).st_uid != os.getuid():
        raise ClozeError(f"{base} belongs to another user; set TMPDIR to a directory of your own")
    directory = os.path.join(base, hashlib.sha256(stamp.encode()).hexdigest()[:16])
    while True:
        os.makedirs(directory, exist_ok=True)
        users = open(os.path.join(directory, "_users"), "a+b")  # noqa: SIM115
        flock_or_say(STALL_SECONDS, users, fcntl.LOCK_SH)
        # The last user may have removed the directory between open and lock.
        if has_name(users, users.name):
            break
        users.close()
    _IN_USE.append(users)
    atexit.register(_remove_unused, directory, users)
    for name in os.listdir(base):
        other = os.path.join(base, name)
        if other != directory:
            with contextlib.suppress(FileNotFoundError):
                _remove_unused(other, open(os.path.join(other, "_users"), "r+b"))  # noqa: SIM115
    return directory


_IN_USE: list[IO[bytes]] = []  # open and locked until the process ends


def _remove_unused(directory: str, users: IO[bytes]) -> None:
    """Remove the directory of copies unless another process uses it, and close `users`."""
    with users, contextlib.suppress(BlockingIOError):
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)


@functools.lru_cache(maxsize=1 << 20)
def local_copy(path: str, stamp: str) -> str:
    """Return `path` if it is local, else a copy on this machine's disk, fetched once per machine.

    `stamp`: version of the content; a new stamp makes a new copy.
    """
    if storage.is_local(path):
        return path
    copy = os.path.join(_copies(stamp), f"{hashlib.sha256(path.encode()).hexdigest()[:24]}.arrow")
    while not os.path.exists(copy):
        with open(f"{copy}.part", "ab") as target:
            # One process fetches, the others wait as long as its file changes.
            written = os.fstat(target.fileno()).st_mtime_ns
            try:
                flock_or_say(STALL_SECONDS, target, fcntl.LOCK_EX)
            except UsageError:
                if os.fstat(target.fileno()).st_mtime_ns > written:
                    continue
                raise
            if not has_name(target, target.name):
                continue
            storage.download(path, target.name)
            os.replace(target.name, copy)
    return copy
