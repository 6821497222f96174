"""One filesystem layer: a path is a local path or any URL that fsspec knows (`s3://`, `gs://`, `memory://`).

Files are committed atomically: on a local disk by temporary file, fsync and rename, on an object store
by its own all-or-nothing put. Nothing else in the project opens files for writing artifacts.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import uuid
from collections.abc import Iterator
from typing import IO, Any

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from pipeline.errors import DataError

CHUNK_BYTES = 1 << 20
TEMPORARY = "_tmp-"  # opens the name of a file that is being written


def filesystem(path: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The fsspec filesystem of `path`, and the path inside it."""
    fs, inner = url_to_fs(str(path))
    return fs, inner


def is_local(path: str) -> bool:
    """Whether `path` lies on a local disk, so that it can be memory-mapped and renamed."""
    return isinstance(filesystem(path)[0], LocalFileSystem)


def join(base: str, *parts: str) -> str:
    """`base` with `parts` below it; works for local paths and URLs alike."""
    return posixpath.join(str(base), *parts)


def exists(path: str) -> bool:
    fs, inner = filesystem(path)
    return bool(fs.exists(inner))


def is_dir(path: str) -> bool:
    fs, inner = filesystem(path)
    return bool(fs.isdir(inner))


def make_dirs(path: str) -> None:
    fs, inner = filesystem(path)
    fs.makedirs(inner, exist_ok=True)


def remove(path: str) -> None:
    """Remove a file or a whole tree; nothing happens where there is none."""
    fs, inner = filesystem(path)
    if fs.exists(inner):
        fs.rm(inner, recursive=True)


def list_files(directory: str) -> list[str]:
    """Every file below `directory`, as sorted paths relative to it, with `/` between the parts."""
    fs, inner = filesystem(directory)
    root = inner.rstrip("/") + "/"
    return sorted(str(found)[len(root) :] for found in fs.find(inner))


def open_input(path: str) -> IO[bytes]:
    """Open a file for reading bytes; a missing one is a `DataError` that names it."""
    fs, inner = filesystem(path)
    try:
        handle: IO[bytes] = fs.open(inner, "rb")
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the path") from error
    return handle


def read_text(path: str) -> str:
    with open_input(path) as handle:
        return handle.read().decode("utf-8")


@contextlib.contextmanager
def atomic_output(path: str) -> Iterator[IO[bytes]]:
    """Open `path` for writing bytes; it appears whole when the block ends well, and not at all otherwise."""
    fs, inner = filesystem(path)
    if not isinstance(fs, LocalFileSystem):
        with fs.open(inner, "wb") as remote:
            yield remote
        return
    os.makedirs(os.path.dirname(inner) or ".", exist_ok=True)
    # A kill leaves the temporary file behind: `_` keeps it out of the artifact that a rerun finishes.
    temporary = os.path.join(
        os.path.dirname(inner), f"{TEMPORARY}{os.path.basename(inner)}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    )
    try:
        with open(temporary, "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, inner)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_bytes(path: str, data: bytes) -> None:
    with atomic_output(path) as handle:
        handle.write(data)


def sha256(path: str) -> tuple[str, int]:
    """The file's sha256 in hexadecimal, and its size in bytes."""
    digest, size = hashlib.sha256(), 0
    with open_input(path) as handle:
        while chunk := handle.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return digest.hexdigest(), size


def stat(path: str) -> dict[str, Any]:
    """fsspec's info of a file: at least `name`, `size` and `type`."""
    fs, inner = filesystem(path)
    try:
        info: dict[str, Any] = fs.info(inner)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the path") from error
    return info
