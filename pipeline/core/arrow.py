"""Arrow IPC files through the one filesystem layer: memory-mapped on a local disk, read whole from elsewhere."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator

import pyarrow as pa

from pipeline.core import storage
from pipeline.core.errors import DataError

_WRITE_BUFFER = 1 << 20


@contextlib.contextmanager
def named_damage(path: str, remedy: str) -> Iterator[None]:
    """Arrow's complaints become a `DataError` that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is damaged ({str(error).splitlines()[0]}); {remedy}") from error


def file_buffer(path: str) -> pa.Buffer:
    """The bytes of the file at `path`: mapped, and no file descriptor kept, on a local disk; in memory from elsewhere.

    Raises:
        DataError: there is none, or it cannot be read.
    """
    if not storage.exists(path):
        raise DataError(f"{path} does not exist; run the stage that makes it again")
    with named_damage(path, "run the stage that makes it again"):
        if not storage.is_local(path):
            with storage.open_input(path) as handle:
                return pa.py_buffer(handle.read())
        if not os.path.getsize(storage.filesystem(path)[1]):
            raise DataError(f"{path} is empty; run the stage that makes it again")
        with pa.memory_map(storage.filesystem(path)[1]) as mapped:
            return mapped.read_buffer()


def open_arrow(path: str) -> pa.RecordBatchFileReader:
    """A reader of the Arrow IPC file at `path`; `DataError` if there is none, or it is damaged."""
    buffer = file_buffer(path)
    with named_damage(path, "run the stage that makes it again"):
        return pa.ipc.open_file(pa.BufferReader(buffer))


def read_arrow(path: str) -> pa.Table:
    """The table in the Arrow IPC file at `path`; `DataError` if there is none, or it is damaged."""
    reader = open_arrow(path)
    with named_damage(path, "run the stage that makes it again"):
        return reader.read_all()


def write_arrow(path: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], compression: str | None = None) -> None:
    """Write an Arrow IPC file, whole or not at all.

    Args:
        path: where.
        schema: of the batches.
        batches: they may be made while the file is written.
        compression: of buffers: zstd or lz4. Without it readers can map the file into memory.
    """
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with storage.atomic_output(path) as handle, pa.ipc.new_file(handle, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)


def release(buffer: pa.Buffer) -> None:
    """Take the pages of a mapped file out of this process's memory; they are read again when they are looked at.

    The system would take them when it needs them. This keeps what a worker seems to hold flat, however much it has read.
    """
    if sys.platform.startswith("linux") and buffer.size:
        start = buffer.address - buffer.address % mmap.PAGESIZE
        length = buffer.address + buffer.size - start
        _libc().madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_DONTNEED)


def give_back() -> None:
    """Give memory that nothing holds any more back to the system: Arrow's, and that of the C library.

    Both keep what was freed for the next use. Over many units of unequal sizes that grows, and a worker's memory with it.
    """
    pa.default_memory_pool().release_unused()
    trim = getattr(_libc(), "malloc_trim", None)  # glibc's alone
    if trim is not None:
        trim(0)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@functools.cache
def _downloads() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="cloze-parts-")


@functools.lru_cache(maxsize=1 << 20)
def local_copy(path: str, stamp: str) -> str:
    """`path` if it is local, else a copy of it on this machine's disk, fetched once a process and removed at its end.

    Args:
        path: of a file.
        stamp: another one for another content at the same path.
    """
    if storage.is_local(path):
        return path
    copy = os.path.join(_downloads().name, f"{len(os.listdir(_downloads().name)):06d}.arrow")
    with storage.open_input(path) as source, open(copy, "wb") as target:
        while chunk := source.read(_WRITE_BUFFER):
            target.write(chunk)
    return copy
