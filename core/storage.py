"""The filesystem layer: local paths and any URL that fsspec knows (`s3://`, `gs://`, `memory://`).

Files are committed atomically: on a local disk by temporary file, fsync and rename; on an object
store by an all-or-nothing put, which is dropped if writing fails. No other module opens files for
writing artifacts.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import os
import posixpath
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import IO, TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from cloze.core.errors import ClozeError, DataError, UsageError, naming

if TYPE_CHECKING:
    # imported on first use: the command line reads configs at every start
    import fsspec

CHUNK_BYTES = 1 << 20
PUT_BYTES = 5 << 20  # largest object that is written by one request; S3's smallest part
# keys of content tags; GCS's etag also changes with labels, so its hashes come first
_TAGS = ("md5Hash", "crc32c", "ETag", "etag")
TEMPORARY = "_tmp-"  # prefix of a file that is being written
_CLIENTS = ("botocore", "aiobotocore", "aiohttp", "gcsfs", "google")  # their errors are no OSErrors

_P = ParamSpec("_P")
_R = TypeVar("_R")


def filesystem(path: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return the fsspec filesystem of `path`, and the path inside it.

    Raises:
        UsageError: the URL's scheme is unknown, or its package is not installed.
    """
    from fsspec.core import url_to_fs

    scheme, separator, _ = str(path).partition("://")
    options = {}
    if separator and scheme not in ("file", "local", "memory"):
        # Workers and other machines write here, too: a cached listing would be stale.
        options["use_listings_cache"] = False
    try:
        fs, inner = url_to_fs(str(path), **options)
    except ImportError as error:
        packages = {"s3": "pip install 'cloze[s3]'", "gs": "pip install 'cloze[gcs]'"}
        remedy = packages.get(scheme, str(error))
        raise UsageError(f"{path} needs a package that is not installed; {remedy}") from error
    except ValueError as error:
        cause = str(error).rstrip(".")
        raise UsageError(f"{path}: {cause}; use a local path, s3:// or gs://") from error
    return fs, inner


@contextlib.contextmanager
def _client_errors(path: str) -> Iterator[None]:
    """Convert errors of a store (endpoint, credentials, …) to a message with the path.

    The clients have repeated the request several times by then, with growing pauses.
    """
    try:
        yield
    except (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError):
        raise
    except Exception as error:
        is_client_error = type(error).__module__.partition(".")[0] in _CLIENTS
        if not is_client_error and not (isinstance(error, OSError) and not is_local(path)):
            raise
        cause = (str(getattr(error, "strerror", None) or error) or type(error).__name__).rstrip(".")
        remedy = "check the store's address (AWS_ENDPOINT_URL) and your credentials"
        if isinstance(error, PermissionError):
            remedy = "renew your credentials or ask for the right, and run again"
        elif isinstance(error, TimeoutError) or getattr(error, "errno", None) == errno.EBUSY:
            remedy = "the store is busy: run again later, with fewer workers"
        raise ClozeError(f"{path} cannot be reached ({cause}); {remedy}") from error


def _with_client_errors(
    function: Callable[Concatenate[str, _P], _R],
) -> Callable[Concatenate[str, _P], _R]:
    """Decorate a function of a path by `_client_errors`."""

    @functools.wraps(function)
    def call(path: str, /, *arguments: _P.args, **keyword_arguments: _P.kwargs) -> _R:
        with _client_errors(path):
            return function(path, *arguments, **keyword_arguments)

    return call


def _is_disk(fs: fsspec.AbstractFileSystem) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(fs, LocalFileSystem)


def is_local(path: str) -> bool:
    """Return whether `path` is on a local disk, so that it can be memory-mapped and renamed."""
    return not _has_scheme(path) or _is_disk(filesystem(path)[0])


def _has_scheme(path: str) -> bool:
    return "://" in str(path) or "::" in str(path)


def absolute(path: str) -> str:
    """Return `path` valid for any process of this machine: a local path is made absolute."""
    return path if _has_scheme(path) else os.path.abspath(path)


def join(base: str, *parts: str) -> str:
    """Append `parts` to `base`; works for local paths and URLs alike."""
    return posixpath.join(str(base), *parts)


@_with_client_errors
def exists(path: str) -> bool:
    fs, inner = filesystem(path)
    return bool(fs.exists(inner))


@_with_client_errors
def is_dir(path: str) -> bool:
    fs, inner = filesystem(path)
    return bool(fs.isdir(inner))


def is_file(path: str) -> bool:
    """Return whether a listed `path` is a file, and no broken link, directory or named pipe."""
    return not is_local(path) or os.path.isfile(filesystem(path)[1])


@_with_client_errors
def make_dirs(path: str) -> None:
    """Create the directory on a disk; in a store a misspelt name would create a bucket."""
    fs, inner = filesystem(path)
    if _is_disk(fs):
        fs.makedirs(inner, exist_ok=True)


_CHECK: ContextVar[Callable[[], None]] = ContextVar(
    "raises if this thread may change no more files", default=lambda: None
)


@contextlib.contextmanager
def changing_after(check: Callable[[], None]) -> Iterator[None]:
    """Call `check` before this thread commits or removes a file; its error prevents the change."""
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)


def check_right() -> None:
    """Call the check of `changing_after`, if one is active."""
    _CHECK.get()()


@_with_client_errors
def remove(path: str) -> None:
    """Remove a file or a whole tree, if it exists."""
    check_right()
    fs, inner = filesystem(path)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        _LISTED.clear()
        fs.rm(inner, recursive=True)


@_with_client_errors
def remove_file(path: str) -> None:
    """Remove a file, if it exists, by one request."""
    check_right()
    fs, inner = filesystem(path)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        _LISTED.clear()
        fs.rm_file(inner)


@_with_client_errors
def list_names(directory: str) -> list[str]:
    """Return the sorted names of the entries of `directory`; empty if it does not exist."""
    fs, inner = filesystem(directory)
    try:
        if _is_disk(fs):  # fsspec would stat each name
            return sorted(os.listdir(inner))
        names = {str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in fs.ls(inner, detail=False)}
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(names - {inner.rsplit("/", 1)[-1]})


@_with_client_errors
def move(source: str, target: str) -> None:
    """Rename a directory within a filesystem and replace the target; a store moves file by file."""
    fs, inner = filesystem(source)
    inner_target = filesystem(target)[1]
    if fs.exists(inner_target):
        fs.rm(inner_target, recursive=True)
    fs.mv(inner, inner_target, recursive=True)


def fsync_tree(path: str) -> None:
    """Flush the names in and below the directory `path` to disk; a store needs no flush."""
    fs, inner = filesystem(path)
    if _is_disk(fs):
        for directory, _, _ in os.walk(inner, topdown=False):
            fsync_directory(directory)


def fsync_directory(path: str) -> None:
    """Flush the names in the directory `path` itself to disk."""
    fs, inner = filesystem(path)
    if _is_disk(fs):
        handle = os.open(inner, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@_with_client_errors
def list_files(directory: str) -> list[str]:
    """Return every file below `directory`, as sorted relative paths with `/` between the parts."""
    fs, inner = filesystem(directory)
    root = inner.rstrip("/") + "/"
    if _is_disk(fs):
        return sorted(str(file)[len(root) :] for file in fs.find(inner))
    infos = fs.find(inner, detail=True)
    _note_listed(directory, infos)
    return sorted(str(file)[len(root) :] for file in infos)


LISTING_SECONDS = 10.0  # for which a listing answers questions about single objects
_LISTED: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}


def _note_listed(path: str, infos: dict[str, dict[str, Any]]) -> None:
    """Keep the infos of a listing for `stat`: one request then stands for one a file."""
    scheme, now = path.partition("://")[0], time.monotonic()
    if len(_LISTED) > 1 << 20:
        _LISTED.clear()
    _LISTED.update(((scheme, name), (now, info)) for name, info in infos.items())


def printable_name(name: str) -> str:
    """Return a file's name as text, with bytes that are no UTF-8 as `\\x` escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def is_pattern(path: str) -> bool:
    """Return whether `path` has wildcards: `*`, `?` or `[`."""
    return any(character in path for character in "*?[")


@_with_client_errors
def glob(pattern: str) -> tuple[str, list[str]]:
    """Return the matches of a pattern with wildcards; `**` matches any number of directories.

    Returns:
        The directory before the first wildcard ("" for the current one), and sorted paths relative
        to it.
    """
    components = pattern.split("/")
    fixed_count = next(
        number for number, component in enumerate(components) if is_pattern(component)
    )
    base = "/".join(components[:fixed_count]) or ("/" if pattern.startswith("/") else "")
    fs, inner = filesystem(pattern)
    prefix = "/".join(inner.split("/")[: len(inner.split("/")) - (len(components) - fixed_count)])
    matches = fs.glob(inner, detail=not _is_disk(fs))
    if not _is_disk(fs):
        _note_listed(pattern, matches)
    return base, sorted(str(match)[len(prefix) :].strip("/") for match in matches)


_READ_AHEAD: ContextVar[int | None] = ContextVar("bytes fetched ahead of a reader", default=None)


@contextlib.contextmanager
def reading_ahead(size: int) -> Iterator[None]:
    """Fetch at most `size` bytes more than is read of objects that this thread opens in the block.

    For readers of a file's beginning; by default up to 50 MB are fetched at a time.
    """
    token = _READ_AHEAD.set(size)
    try:
        yield
    finally:
        _READ_AHEAD.reset(token)


@_with_client_errors
def open_input(path: str) -> IO[bytes]:
    """Open a file for reading bytes; raise a `DataError` that names the path if it is missing."""
    fs, inner = filesystem(path)
    size = None if _is_disk(fs) else _READ_AHEAD.get()
    try:
        handle: IO[bytes] = fs.open(inner, "rb", **({"block_size": size} if size else {}))
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the path") from error
    cache = getattr(handle, "cache", None)
    if not _is_disk(fs) and cache is not None:  # reads happen later
        cache.fetcher = _client_errors(path)(cache.fetcher)
    return handle


@_with_client_errors
def read_at_once(path: str) -> bytes:
    """Return a file's bytes by one request; raise FileNotFoundError if it is missing."""
    fs, inner = filesystem(path)
    # s3fs otherwise asks for the size first, to divide large files
    content: bytes = fs.cat_file(inner, **({"max_concurrency": 1} if "s3" in fs.protocol else {}))
    return content


@_with_client_errors
def download(path: str, target: str) -> None:
    """Copy an object of a store to a local file: by one request, or by parallel ones if large."""
    fs, inner = filesystem(path)
    fs.get_file(inner, target)


def read_text(path: str) -> str:
    """Return a file's text by one request; raise a `DataError` if it is missing."""
    try:
        return read_at_once(path).decode("utf-8")
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the path") from error


@_with_client_errors
def has_file(path: str) -> bool:
    """Return whether a file that is never empty exists; one request, unlike `exists`."""
    fs, inner = filesystem(path)
    if _is_disk(fs):
        return os.path.isfile(inner)
    try:
        return bool(fs.cat_file(inner, start=0, end=1))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def atomic_output(
    path: str,
    commit: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    *,
    private: bool = False,
) -> Iterator[IO[bytes]]:
    """Open `path` for writing bytes; the file appears only if the block succeeds.

    Args:
        commit: context in which the file gets its name; if entering it raises, the file does not
            appear.
        private: on a disk, only the owner may read the file.
    """
    fs, inner = filesystem(path)
    if not _is_disk(fs):
        with _remote_output(fs, inner, path, commit) as remote:
            yield remote
        return
    os.makedirs(os.path.dirname(inner) or ".", exist_ok=True)
    directory, name = os.path.split(inner)
    # A kill leaves the temporary file: its `_` excludes it from the artifact of a rerun.
    unique = f"{TEMPORARY}{name}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    temporary, opener = os.path.join(directory, unique), open_private if private else None
    try:
        with naming(path), open(temporary, "wb", opener=opener) as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        check_right()
        with commit():
            os.replace(temporary, inner)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


_WRITTEN: ContextVar[tuple[str, dict[str, tuple[str, int]]] | None] = ContextVar(
    "a directory, and sha256 and size of the objects that this thread wrote there", default=None
)


@contextlib.contextmanager
def hashing_written(directory: str) -> Iterator[dict[str, tuple[str, int]]]:
    """Yield sha256 and size of the objects that this thread writes below `directory` of a store.

    They are keyed by their relative name; names with a part that begins with `_` are left out. A
    builder need not read its output again for the manifest.
    """
    written: dict[str, tuple[str, int]] = {}
    token = _WRITTEN.set((f"{directory}/", written))
    try:
        yield written
    finally:
        _WRITTEN.reset(token)


def note_written(hashes: Mapping[str, Sequence[Any]]) -> None:
    """Add what another process wrote, by relative name, to the hashes of `hashing_written`."""
    noted = _WRITTEN.get()
    if noted is not None:
        noted[1].update((name, (str(sha256), int(size))) for name, (sha256, size) in hashes.items())


@contextlib.contextmanager
def _remote_output(
    fs: fsspec.AbstractFileSystem,
    inner: str,
    path: str,
    commit: Callable[[], contextlib.AbstractContextManager[None]],
) -> Iterator[IO[bytes]]:
    """Open an object for writing; unlike fsspec's own `with`, discard it after an exception."""
    try:
        with _client_errors(path):
            directory, written = _WRITTEN.get() or ("", {})
            name = path.removeprefix(directory)
            is_hashed = bool(directory) and name != path and "/_" not in f"/{name}"
            remote = _Upload(fs, inner, hashlib.sha256() if is_hashed else None)
            try:
                yield remote  # type: ignore[misc]
                remote.close()
                check_right()
                _LISTED.clear()
                with commit():
                    remote.commit()
                if remote.digest is not None:
                    written[name] = remote.digest.hexdigest(), remote.tell()
            except BaseException:
                remote.discard()
                raise
    except FileNotFoundError as error:  # clients name no path
        cause = str(error).rstrip(".")
        raise UsageError(
            f"{path} cannot be written ({cause}); check its name and your permissions"
        ) from error


class _Upload(io.RawIOBase):
    """An object that is being written: at most `PUT_BYTES` by one request, more as a multipart
    upload. `digest` takes the bytes.
    """

    def __init__(self, fs: fsspec.AbstractFileSystem, inner: str, digest: Any = None) -> None:
        self._fs, self._inner, self.digest = fs, inner, digest
        self._small, self._large = bytearray(), None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return len(self._small) if self._large is None else int(self._large.tell())

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self.digest is not None:
            self.digest.update(view)
        if self._large is None and len(self._small) + len(view) > PUT_BYTES:
            self._large = self._fs.open(self._inner, "wb", autocommit=False)
            self._large.write(self._small)
            self._small.clear()
        if self._large is None:
            self._small += view
        else:
            self._large.write(view)
        return len(view)

    def close(self) -> None:
        if self._large is not None and not self.closed:
            self._large.close()
        super().close()

    def commit(self) -> None:
        if self._large is None:
            self._fs.pipe_file(self._inner, bytes(self._small))
        else:
            self._large.commit()

    def discard(self) -> None:
        if self._large is not None:
            self._large.closed = True  # else the garbage collector would flush the rest
            with contextlib.suppress(Exception):
                self._large.discard()


def write_bytes(path: str, data: bytes, *, private: bool = False) -> None:
    with atomic_output(path, private=private) as handle:
        handle.write(data)


def open_private(name: str, flags: int) -> int:
    """Open a file as `open`'s opener does; only the owner may read a file that it creates."""
    return os.open(name, flags, 0o600)


@_with_client_errors
def sha256(path: str, report: Callable[[int], None] | None = None) -> tuple[str, int]:
    """Return the file's sha256 in hexadecimal, and its size in bytes.

    The file is read into one buffer, so that threads hash in parallel.

    Args:
        report: called with the number of bytes after each read.
    """
    digest, size, buffer = hashlib.sha256(), 0, bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    with open_input(path) as handle:
        while count := handle.readinto(buffer):  # type: ignore[attr-defined]
            digest.update(view[:count])
            size += count
            if report is not None:
                report(count)
    return digest.hexdigest(), size


@_with_client_errors
def stat(path: str) -> dict[str, Any]:
    """Return fsspec's info of a file: at least `name`, `size` and `type`.

    In a store it may be `LISTING_SECONDS` old, unless this process has changed the object.
    """
    fs, inner = filesystem(path)
    listed_at, listed = _LISTED.get((path.partition("://")[0], inner), (0.0, {}))
    if listed and time.monotonic() - listed_at < LISTING_SECONDS:
        return listed
    try:
        info: dict[str, Any] = fs.info(inner)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the path") from error
    return info


@_with_client_errors
def mtime(path: str) -> float:
    """Return the file's Unix time of change by its store's clock; 0 if it does not exist."""
    fs, inner = filesystem(path)
    try:
        return float(fs.modified(inner).timestamp())
    except FileNotFoundError:
        return 0.0


@_with_client_errors
def etag(path: str) -> str | None:
    """Return the store's tag of the file's content, which changes with the bytes; None: no tag."""
    info = stat(path)
    tag = next((str(info[name]).strip('"') for name in _TAGS if info.get(name)), "")
    is_weak = tag.startswith("W/")  # may stay when bytes change
    return f"{tag} {info.get('size')}" if tag and not is_weak else None
