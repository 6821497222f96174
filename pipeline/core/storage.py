"""One filesystem layer: a path is a local path or any URL that fsspec knows (`s3://`, `gs://`, `memory://`).

Files are committed atomically: on a local disk by temporary file, fsync and rename, on an object store
by its own all-or-nothing put, which is not made where writing fails half-way. Nothing else in the project opens files for
writing artifacts.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import posixpath
import uuid
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any, TypeVar

from pipeline.core.errors import ClozeError, DataError, UsageError

if TYPE_CHECKING:
    import fsspec  # imported when the first path is looked at: the command line reads configs at every start

CHUNK_BYTES = 1 << 20
_TAGS = (
    "md5Hash",
    "crc32c",
    "ETag",
    "etag",
)  # what stores call it; GCS's etag changes with labels too, so its hashes come first
TEMPORARY = "_tmp-"  # opens the name of a file that is being written
_CLIENTS = ("botocore", "aiobotocore", "aiohttp", "gcsfs", "google")  # whose errors are no OSErrors

Function = TypeVar("Function", bound=Callable[..., Any])


def filesystem(path: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The fsspec filesystem of `path`, and the path inside it.

    Raises:
        UsageError: the URL's scheme is unknown, or the package that serves it is not installed.
    """
    from fsspec.core import url_to_fs

    scheme, separator, _ = str(path).partition("://")
    # Workers and other machines write beside us: a remembered listing would be an old one.
    options = {"use_listings_cache": False} if separator and scheme not in ("file", "local", "memory") else {}
    try:
        fs, inner = url_to_fs(str(path), **options)
    except ImportError as error:
        extra = {"s3": "pip install 'cloze[s3]'", "gs": "pip install 'cloze[gcs]'"}.get(scheme, str(error))
        raise UsageError(f"{path} needs a package that is not installed; {extra}") from error
    except ValueError as error:
        raise UsageError(f"{path}: {str(error).rstrip('.')}; use a local path, s3:// or gs://") from error
    return fs, inner


def _as_sentences(function: Function) -> Function:
    """Turn what a store's client raises (no endpoint, no credentials, …) into one sentence that names the path."""

    @functools.wraps(function)
    def call(path: str, *rest: Any, **named: Any) -> Any:
        try:
            return function(path, *rest, **named)
        except Exception as error:
            raised = _as_sentence(path, error)
            if raised is error:
                raise
            raise raised from error

    return call  # type: ignore[return-value]


def _as_sentence(path: str, error: Exception) -> Exception:
    if isinstance(error, ClozeError) or type(error).__module__.partition(".")[0] not in _CLIENTS:
        return error
    cause = str(error).rstrip(".")
    return ClozeError(f"{path} cannot be reached ({cause}); check the store's address (AWS_ENDPOINT_URL) and your credentials")


def _is_disk(fs: fsspec.AbstractFileSystem) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(fs, LocalFileSystem)


def is_local(path: str) -> bool:
    """Whether `path` lies on a local disk, so that it can be memory-mapped and renamed."""
    return not _has_scheme(path) or _is_disk(filesystem(path)[0])


def _has_scheme(path: str) -> bool:
    return "://" in str(path) or "::" in str(path)


def absolute(path: str) -> str:
    """`path` as any process of this machine understands it: a local path without a scheme is made absolute."""
    return path if _has_scheme(path) else os.path.abspath(path)


def is_shared(path: str) -> bool:
    """Whether other processes can see `path`: not so what lies in this one's memory."""
    return not str(path).startswith("memory:")


def join(base: str, *parts: str) -> str:
    """`base` with `parts` below it; works for local paths and URLs alike."""
    return posixpath.join(str(base), *parts)


@_as_sentences
def exists(path: str) -> bool:
    fs, inner = filesystem(path)
    return bool(fs.exists(inner))


@_as_sentences
def is_dir(path: str) -> bool:
    fs, inner = filesystem(path)
    return bool(fs.isdir(inner))


def make_dirs(path: str) -> None:
    """Make the directory where there are such things. On an object store that would make a bucket, perhaps of a misspelt name."""
    fs, inner = filesystem(path)
    if _is_disk(fs):
        fs.makedirs(inner, exist_ok=True)


@_as_sentences
def remove(path: str) -> None:
    """Remove a file or a whole tree; nothing happens where there is none."""
    fs, inner = filesystem(path)
    if fs.exists(inner):
        fs.rm(inner, recursive=True)


@_as_sentences
def names_in(directory: str) -> list[str]:
    """The names of what lies in `directory` itself, files and directories, sorted; empty where there is no such directory."""
    fs, inner = filesystem(directory)
    try:
        return sorted(
            {str(found).rstrip("/").rsplit("/", 1)[-1] for found in fs.ls(inner, detail=False)} - {inner.rsplit("/", 1)[-1]}
        )
    except (FileNotFoundError, NotADirectoryError):
        return []


@_as_sentences
def move(source: str, target: str) -> None:
    """Give a directory another name of the same filesystem; what is there is replaced. On an object store file by file."""
    fs, inner = filesystem(source)
    goal = filesystem(target)[1]
    if fs.exists(goal):
        fs.rm(goal, recursive=True)
    fs.mv(inner, goal, recursive=True)


def sync_directories(path: str) -> None:
    """Have the names in the directory `path`, and in those below it, on disk; an object store has none to lose."""
    fs, inner = filesystem(path)
    if not _is_disk(fs):
        return
    for directory, _, _ in os.walk(inner, topdown=False):
        sync_directory(directory)


def sync_directory(path: str) -> None:
    """Have the names in the directory `path` itself on disk."""
    fs, inner = filesystem(path)
    if not _is_disk(fs):
        return
    handle = os.open(inner, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_torn_files(directory: str) -> None:
    """Remove what writers that were killed have left below `directory` under temporary names."""
    for name in list_files(directory):
        if posixpath.basename(name).startswith(TEMPORARY):
            remove(join(directory, name))


@_as_sentences
def list_files(directory: str) -> list[str]:
    """Every file below `directory`, as sorted paths relative to it, with `/` between the parts."""
    fs, inner = filesystem(directory)
    root = inner.rstrip("/") + "/"
    return sorted(str(found)[len(root) :] for found in fs.find(inner))


def readable(name: str) -> str:
    """A file's name as text: bytes of it that are no UTF-8 as `\\x` escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def is_pattern(path: str) -> bool:
    """Whether `path` has wildcards: `*`, `?` or `[`."""
    return any(sign in path for sign in "*?[")


def glob(pattern: str) -> tuple[str, list[str]]:
    """What a pattern with wildcards matches; `**` stands for any number of directories.

    Returns:
        the directory before the first wildcard ("" for the current one), and sorted paths relative to it.
    """
    parts = pattern.split("/")
    fixed = next(number for number, part in enumerate(parts) if is_pattern(part))
    base = "/".join(parts[:fixed]) or ("/" if pattern.startswith("/") else "")
    fs, inner = filesystem(pattern)
    prefix = "/".join(inner.split("/")[: len(inner.split("/")) - (len(parts) - fixed)])
    found = (str(path) for path in fs.glob(inner))
    return base, sorted(path[len(prefix) :].strip("/") for path in found)


@_as_sentences
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
    if not _is_disk(fs):
        with _remote_output(fs, inner, path) as remote:
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


@contextlib.contextmanager
def _remote_output(fs: fsspec.AbstractFileSystem, inner: str, path: str) -> Iterator[IO[bytes]]:
    """fsspec's own `with` closes, and so commits, what an exception has cut short. Here it is thrown away."""
    try:
        remote = fs.open(inner, "wb", autocommit=False)
        try:
            yield remote
            remote.close()
        except BaseException:
            remote.closed = True  # or the garbage collector would flush what is left
            with contextlib.suppress(Exception):
                remote.discard()
            raise
        remote.commit()
    except (FileNotFoundError, PermissionError) as error:  # of a bucket, whose client names no path
        raise UsageError(f"{path} cannot be written ({str(error).rstrip('.')}); check its name and your rights") from error
    except Exception as error:
        raised = _as_sentence(path, error)
        if raised is error:
            raise
        raise raised from error


def write_bytes(path: str, data: bytes) -> None:
    with atomic_output(path) as handle:
        handle.write(data)


@_as_sentences
def create(path: str, data: bytes) -> bool:
    """Write a file only if there is none; false if there is one. Of several who try at once, one succeeds."""
    fs, inner = filesystem(path)
    if _is_disk(fs):
        os.makedirs(os.path.dirname(inner) or ".", exist_ok=True)
    try:
        fs.pipe_file(inner, data, mode="create")
    except FileExistsError:
        return False
    return True


@_as_sentences
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


@_as_sentences
def modified(path: str) -> float:
    """When the file was written, in seconds since 1970 by the clock of what holds it; 0 where it is gone."""
    fs, inner = filesystem(path)
    try:
        return float(fs.modified(inner).timestamp())
    except FileNotFoundError:
        return 0.0


@_as_sentences
def content_tag(path: str) -> str | None:
    """What the store that holds the file says of its content without giving it: another text for other bytes. None: it says nothing."""
    info = stat(path)
    tag = next((str(info[name]).strip('"') for name in _TAGS if info.get(name)), None)
    if tag is None or tag.startswith("W/"):  # a weak one may stay while bytes change
        return None
    return f"{tag} {info.get('size')}"
