"""What is special about object stores: their clients' errors, listings, and uploads.

Requests are few, because each costs time and money: a small object is written by one, a listing
answers for its objects, and what is written is hashed on the way.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from cloze.core.errors import ClozeError, UsageError, describe_missing_package, first_line, naming

if TYPE_CHECKING:
    # imported on first use: the command line reads configs at every start
    import fsspec

LEAST_AHEAD, MOST_AHEAD = 1 << 20, 16 << 20  # bytes fetched before they are read
PUT_BYTES = 5 << 20  # largest object that is written by one request; S3's smallest part
# seconds after which a silent server is asked again, about twenty times in all
S3_TIMEOUTS = {"connect_timeout": 10, "read_timeout": 30}
# their errors are no OSErrors
_CLIENTS = (
    "botocore aiobotocore aiohttp gcsfs google httpx httpx2 huggingface_hub requests paramiko"
).split()
# what is downloaded lands on a disk
_OF_THIS_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE)
_CHECK_IT = "check the store's address (AWS_ENDPOINT_URL) and your credentials"
_CHECK_HUB = "check the name, HF_ENDPOINT, HF_HUB_OFFLINE and your token (`hf auth login`)"

_P = ParamSpec("_P")
_R = TypeVar("_R")


_ONE_SLASH = re.compile(r"(s3a?|gs|gcs|hdfs|abfss?|az|https?|file|memory):/")


def filesystem(path: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return the fsspec filesystem of `path`, and the path inside it.

    Raises:
        UsageError: the URL's scheme is unknown, or its package is not installed.
        ClozeError: its server does not answer.
    """
    from fsspec.core import url_to_fs

    scheme, separator, _ = str(path).partition("://")
    if not separator and _ONE_SLASH.match(str(path)):
        raise UsageError(
            f"{path}: a URL has two slashes after {scheme.partition(':')[0]}:; for a directory of "
            f"this name write ./{path}"
        )
    options: dict[str, Any] = {}
    if separator and scheme in ("file", "local"):  # files are opened and mapped by their path
        raise UsageError(f"{path}: write a local path without {scheme}://")
    if separator and scheme != "memory":
        # Workers and other machines write here, too: a cached listing would be stale.
        options["use_listings_cache"] = False
    if scheme in ("s3", "s3a"):
        options["config_kwargs"] = S3_TIMEOUTS
    try:
        fs, inner = url_to_fs(str(path), **options)
    except ImportError as error:
        # fsspec raises an error of its own, whose cause names the package
        missing = error.__cause__ if isinstance(error.__cause__, ImportError) else error
        raise UsageError(f"{path}: {describe_missing_package(missing)}") from error
    except ValueError as error:
        cause = str(error).rstrip(".")
        raise UsageError(f"{path}: {cause}; use a local path, s3://, gs:// or hf://") from error
    except FileNotFoundError:  # of an archive
        raise
    except Exception as error:  # it connects
        cause = first_line(error)
        raise ClozeError(f"{path} cannot be reached ({cause}); {_check(path)}") from error
    return fs, inner


def _check(path: str) -> str:
    return _CHECK_HUB if path.startswith("hf://") else _CHECK_IT


@contextlib.contextmanager
def client_errors(path: str) -> Iterator[None]:
    """Convert errors of a store (endpoint, credentials, …) to a message with the path.

    The clients have repeated the request several times by then, with growing pauses.
    """
    try:
        yield
    except (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError):
        raise
    except Exception as error:
        if getattr(error, "errno", None) in _OF_THIS_MACHINE:
            raise
        is_client_error = type(error).__module__.partition(".")[0] in _CLIENTS
        is_client_error = is_client_error or isinstance(error, NotImplementedError)
        if not is_client_error and not (isinstance(error, OSError) and not is_local(path)):
            raise
        cause = (str(getattr(error, "strerror", None) or error) or type(error).__name__).rstrip(".")
        remedy = _check(path)
        if isinstance(error, PermissionError):
            remedy = "renew your credentials or ask for the right, and run again"
        elif isinstance(error, TimeoutError) or getattr(error, "errno", None) == errno.EBUSY:
            remedy = "the store is busy: run again later, with fewer workers"
        raise ClozeError(f"{path} cannot be reached ({cause}); {remedy}") from error


@contextlib.contextmanager
def ignoring_denial() -> Iterator[None]:
    """Leave the block at an error of `client_errors` that says that credentials lack a right.

    Credentials are often limited to a prefix of the bucket.
    """
    try:
        yield
    except ClozeError as error:
        if not isinstance(error.__cause__, PermissionError):
            raise


def with_client_errors(
    function: Callable[Concatenate[str, _P], _R],
) -> Callable[Concatenate[str, _P], _R]:
    """Decorate a function of a path by `client_errors`."""

    @functools.wraps(function)
    def call(path: str, /, *arguments: _P.args, **keyword_arguments: _P.kwargs) -> _R:
        with client_errors(path):
            return function(path, *arguments, **keyword_arguments)

    return call


def is_disk(fs: fsspec.AbstractFileSystem) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(fs, LocalFileSystem)


def is_local(path: str) -> bool:
    """Return whether `path` is on a local disk, so that it can be memory-mapped and renamed."""
    return not has_scheme(path) or is_disk(filesystem(path)[0])


def has_scheme(path: str) -> bool:
    return "://" in str(path) or "::" in str(path)


# Listings.

LISTING_SECONDS = 10.0  # for which a listing answers questions about single objects
_LISTED: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}


def note_listed(path: str, infos: dict[str, dict[str, Any]]) -> None:
    """Keep the infos of a listing for `stat`: one request then stands for one a file."""
    scheme, now = path.partition("://")[0], time.monotonic()
    # A bound on memory: a lost entry costs one request.
    if len(_LISTED) > 1 << 20:
        _LISTED.clear()
    _LISTED.update(
        ((scheme, name), (now, info))
        for name, info in infos.items()
        if {"size", "type"} <= info.keys()  # a web server's listing may lack them
    )


def listed(path: str, inner: str) -> dict[str, Any] | None:
    """Return an object's info from a listing of the last `LISTING_SECONDS`, if there is one."""
    noted_at, info = _LISTED.get((path.partition("://")[0], inner), (0.0, None))
    return info if time.monotonic() - noted_at < LISTING_SECONDS else None


def forget_listed(path: str, inner: str, *, tree: bool = False) -> None:
    """Forget what listings say of an object, because this process changes it; `tree`: of all."""
    if tree:
        _LISTED.clear()
    _LISTED.pop((path.partition("://")[0], inner), None)


# Writing.


@dataclass(frozen=True, slots=True)
class Access:
    """How this thread reads and writes files."""

    checked: str = ""  # a directory, and what raises if no more files may change there
    check: Callable[[], None] = lambda: None
    hashed: str = ""  # a directory, and sha256 and size of what was written there
    written: dict[str, tuple[str, int]] = field(default_factory=dict)
    ahead: int | None = None  # bytes fetched ahead of a reader; None: the client's number


ACCESS: ContextVar[Access] = ContextVar("access", default=Access())  # noqa: B039


@contextlib.contextmanager
def within(variable: ContextVar[_R], **changes: Any) -> Iterator[None]:
    """Change fields of a variable's record in the block."""
    token = variable.set(replace(cast("Any", variable.get()), **changes))
    try:
        yield
    finally:
        variable.reset(token)


def changing_after(directory: str, check: Callable[[], None]) -> AbstractContextManager[None]:
    """Call `check` before this thread commits or removes a file; its error prevents the change.

    If `directory` is in a store, local files are not checked.
    """
    return within(ACCESS, checked=directory, check=check)


def check_right(path: str) -> None:
    """Call the check of `changing_after`, if one is active and covers `path`."""
    access = ACCESS.get()
    if is_local(access.checked) or not is_local(path):
        access.check()


@contextlib.contextmanager
def hashing_written(directory: str) -> Iterator[dict[str, tuple[str, int]]]:
    """Yield sha256 and size of the objects that this thread writes below `directory` of a store.

    They are keyed by their relative name; names with a part that begins with `_` are left out. A
    builder need not read its output again for the manifest.
    """
    written: dict[str, tuple[str, int]] = {}
    with within(ACCESS, hashed=f"{directory.rstrip('/')}/", written=written):
        yield written


def note_written(hashes: Mapping[str, Sequence[Any]]) -> None:
    """Add what this thread did not upload, by path or relative name, to `hashing_written`."""
    access = ACCESS.get()
    for name, (sha256, size) in hashes.items() if access.hashed else ():
        access.written[name.removeprefix(access.hashed)] = str(sha256), int(size)


def fetching_as_read(cache: Any, ahead: int | None) -> Any:
    """Return a reader's cache that fetches ahead as much as was read without a jump.

    So a look at some bytes costs little, and a whole file few requests.
    """
    from fsspec.caching import ReadAheadCache

    class Cache(ReadAheadCache):  # type: ignore[misc]
        begin = 0

        def _fetch(self, start: int | None, end: int | None) -> bytes:
            if not self.start <= (start or 0) <= self.end:
                self.begin = start or 0
            sequence = (end or self.size) - self.begin
            self.blocksize = ahead or min(max(sequence, LEAST_AHEAD), MOST_AHEAD)
            return bytes(super()._fetch(start, end))

    is_known = isinstance(cache, ReadAheadCache)
    return Cache(cache.blocksize, cache.fetcher, cache.size) if is_known else cache


def read_ranges(paths: Sequence[str], extents: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return a range of bytes, (first, end), of each of some objects of a store."""
    if not paths:
        return []
    with client_errors(paths[0]):
        fs, _ = filesystem(paths[0])
        inner = [str(fs._strip_protocol(path)) for path in paths]
        starts, ends = zip(*extents, strict=True)
        content: list[bytes] = fs.cat_ranges(inner, list(starts), list(ends), on_error="raise")
    return content


# another object was first: 412 of stores that do not name the condition, 409 of a race
_CONFLICTS = (errno.EINVAL, errno.EBUSY)


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Convert the error of a missing bucket to a message with the path."""
    try:
        yield
    except FileNotFoundError as error:  # clients name no path
        cause = str(error).rstrip(".")
        raise UsageError(
            f"{path} cannot be written ({cause}); check its name and your permissions"
        ) from error


@with_client_errors
def create_bytes(path: str, data: bytes) -> bool:
    """Write an object of a store unless it exists; return whether it now has the content `data`.

    One conditional request (`If-None-Match: *`): of several at once, one succeeds. In a store
    without such requests, each replaces the one before.
    """
    fs, inner = filesystem(path)
    forget_listed(path, inner)
    with writing(path):
        try:
            fs.pipe_file(inner, data, mode="create")
        except FileExistsError:
            pass
        except OSError as error:
            # The store has no conditional writes: the lock then relies on its later checks.
            if error.errno == errno.ENOSYS:
                fs.pipe_file(inner, data)
            elif error.errno not in _CONFLICTS or not fs.exists(inner):
                raise
    try:
        return bool(fs.cat_file(inner) == data)  # a repeated request finds what the first one wrote
    except FileNotFoundError:
        return False


class Upload(io.RawIOBase):
    """An object that is being written: at most `PUT_BYTES` by one request, more as a multipart
    upload. If a block of `hashing_written` is active and covers `path`, it gets the hash.
    """

    def __init__(self, fs: fsspec.AbstractFileSystem, inner: str, path: str) -> None:
        self._fs, self._inner = fs, inner
        directory, self._hashes = ACCESS.get().hashed, ACCESS.get().written
        self._name = path.removeprefix(directory)
        # A prefix was taken off, so the object is below the directory; `_` names are no output.
        is_hashed = bool(directory) and self._name != path and "/_" not in f"/{self._name}"
        self._digest = hashlib.sha256() if is_hashed else None
        self._small = bytearray()
        self._large: Any = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return len(self._small) if self._large is None else int(self._large.tell())

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._digest is not None:
            self._digest.update(view)
        if self._large is None and len(self._small) + len(view) > PUT_BYTES:
            # Not committed on close: a failed block must leave no object.
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
        if self._digest is not None:
            self._hashes[self._name] = self._digest.hexdigest(), self.tell()

    def discard(self) -> None:
        if self._large is not None:
            with contextlib.suppress(Exception):
                self._large.closed = True  # else the garbage collector would flush the rest
                self._large.discard()


@with_client_errors
def read_at_once(path: str) -> bytes:
    """Return a file's bytes by one request; raise FileNotFoundError if it is missing."""
    fs, inner = filesystem(path)
    # s3fs otherwise asks for the size first, to divide large files
    return bytes(fs.cat_file(inner, **({"max_concurrency": 1} if "s3" in fs.protocol else {})))


@with_client_errors
def download(path: str, target: str) -> None:
    """Copy an object of a store to a local file: by one request, or by parallel ones if large."""
    fs, inner = filesystem(path)
    with naming(target):
        fs.get_file(inner, target)
