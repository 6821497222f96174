"""The filesystem layer: local paths and any URL that fsspec knows (`s3://`, `gs://`, `hf://`).

Files are committed atomically: on a local disk by temporary file, fsync and rename; on an object
store by an all-or-nothing put, which is dropped if writing fails. No other module opens files for
writing artifacts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import posixpath
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from glob import escape
from typing import IO, TYPE_CHECKING, Any

from cloze.core import object_store
from cloze.core.accounts import open_unlinked
from cloze.core.errors import DataError, naming
from cloze.core.links import followed
from cloze.core.object_store import Upload, check_right, client_errors, is_disk, with_client_errors
from cloze.core.object_store import changing_after as changing_after
from cloze.core.object_store import create_bytes as create_bytes
from cloze.core.object_store import download as download
from cloze.core.object_store import filesystem as filesystem
from cloze.core.object_store import has_scheme as has_scheme
from cloze.core.object_store import hashing_written as hashing_written
from cloze.core.object_store import ignoring_denial as ignoring_denial
from cloze.core.object_store import is_local as is_local
from cloze.core.object_store import note_written as note_written
from cloze.core.object_store import read_at_once as read_at_once
from cloze.core.object_store import read_ranges as read_ranges

if TYPE_CHECKING:
    # imported on first use: the command line reads configs at every start
    import fsspec

CHUNK_BYTES = 1 << 20
# keys of content tags; GCS's etag also changes with labels, so its hashes come first
_TAGS = ("md5Hash", "crc32c", "ETag", "etag", "blob_id")
Opener = Callable[[str, int], int]  # of `open`
AGAIN = "restore it from a copy, or make it again"
TEMPORARY = "_tmp-"  # prefix of a file that is being written


def absolute(path: str) -> str:
    """Return `path` valid for any process of this machine: a local path is made absolute."""
    return path if has_scheme(path) else os.path.abspath(path)


def join(base: str, *parts: str) -> str:
    """Append `parts` to `base`; works for local paths and URLs alike."""
    return posixpath.join(str(base), *parts)


@with_client_errors
def exists(path: str) -> bool:
    fs, inner = filesystem(path)
    return bool(fs.exists(inner))


@with_client_errors
def is_dir(path: str) -> bool:
    fs, inner = filesystem(path)
    listed = object_store.listed(path, inner)
    return bool(fs.isdir(inner)) if listed is None else listed["type"] == "directory"


def is_file(path: str) -> bool:
    """Return whether a listed `path` is a file, and no broken link, directory or named pipe."""
    return not is_local(path) or os.path.isfile(filesystem(path)[1])


@with_client_errors
def make_dirs(path: str) -> None:
    """Create the directory on a disk; in a store a misspelt name would create a bucket."""
    fs, inner = filesystem(path)
    if is_disk(fs):
        fs.makedirs(inner, exist_ok=True)


@with_client_errors
def remove(path: str) -> None:
    """Remove a file or a whole tree, if it exists."""
    check_right(path)
    fs, inner = filesystem(path)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        object_store.forget_listed(path, inner, tree=True)
        fs.rm(inner if is_disk(fs) else escape(inner), recursive=True)  # stores expand patterns


@with_client_errors
def remove_file(path: str) -> None:
    """Remove a file, if it exists, by one request."""
    check_right(path)
    fs, inner = filesystem(path)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        object_store.forget_listed(path, inner)
        fs.rm_file(inner)


@with_client_errors
def list_names(directory: str, *, only_directories: bool = False) -> list[str]:
    """Return the sorted names in `directory`, or only directories, no links; [] if missing."""
    fs, inner = filesystem(directory)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if is_disk(fs):  # fsspec would stat each name
            if not only_directories:
                return sorted(os.listdir(inner))
            entries = os.scandir(inner)
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        kinds = ("directory",) if only_directories else ("directory", "file")
        infos = (info for info in fs.ls(inner, detail=True) if info["type"] in kinds)
        names = {str(info["name"]).rstrip("/") for info in infos} - {inner.rstrip("/")}
        return sorted(name.rsplit("/", 1)[-1] for name in names)
    return []


@with_client_errors
def move(source: str, target: str) -> None:
    """Rename a directory within a filesystem and replace the target; a store moves file by file."""
    fs, inner = filesystem(source)
    inner_target = filesystem(target)[1]
    remove(target)
    if is_disk(fs):
        fs.mv(inner, inner_target)
        return
    for file in fs.find(inner):
        fs.cp_file(file, inner_target + file[len(inner) :])
    remove(source)


def fsync_tree(path: str) -> None:
    """Flush the names in and below the directory `path` to disk; a store needs no flush."""
    fs, inner = filesystem(path)
    if is_disk(fs):
        for directory, _, _ in os.walk(inner, topdown=False):
            fsync_directory(directory)


def fsync_directory(path: str) -> None:
    """Flush the names in the directory `path` itself to disk."""
    fs, inner = filesystem(path)
    if is_disk(fs):
        handle = os.open(inner, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@with_client_errors
def list_files(directory: str, *, follow: bool = True) -> list[str]:
    """Return every file below `directory`, as sorted relative paths with `/` between the parts.

    `follow`: list what linked folders contain, for readers; else the link, as one more file.
    """
    fs, inner = filesystem(directory)
    root = inner.rstrip("/") + "/"
    found = fs.find(inner, detail=True)
    if is_disk(fs):
        found = followed(fs, found, (os.path.realpath(inner),)) if follow else found
    else:
        object_store.note_listed(directory, found)
    # consoles make a folder as an empty object whose name ends in a slash
    return sorted(str(file)[len(root) :] for file in found if not str(file).endswith("/"))


def printable_name(name: str) -> str:
    """Return a file's name as text, with bytes that are no UTF-8 as `\\x` escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def is_pattern(path: str) -> bool:
    """Return whether `path` has wildcards: `*`, `?` or `[`."""
    return any(character in path for character in "*?[")


@with_client_errors
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
    matches = fs.glob(inner, detail=not is_disk(fs))
    if not is_disk(fs):
        object_store.note_listed(pattern, matches)
    return base, sorted(str(match)[len(prefix) :].strip("/") for match in matches)


def reading_ahead(size: int) -> AbstractContextManager[None]:
    """Fetch at most `size` bytes more than is read of objects that this thread opens in the block.

    For readers of a file's beginning.
    """
    return object_store.within(object_store.ACCESS, ahead=size)


@with_client_errors
def open_input(path: str, end: int | None = None) -> IO[bytes]:
    """Open a file for reading bytes; raise a `DataError` that names the path if it is missing.

    Of a file in a store, nothing is fetched from byte `end` on.
    """
    fs, inner = filesystem(path)
    ahead = None if is_disk(fs) else object_store.ACCESS.get().ahead
    listed = object_store.listed(path, inner) if "s3" in fs.protocol else None
    options = {"block_size": ahead, "size": end or (listed and int(listed["size"]))}
    try:
        handle: Any = fs.open(inner, "rb", **{key: v for key, v in options.items() if v})
        if listed:
            handle.details = listed  # else it asks for them
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the path") from error
    cache = getattr(handle, "cache", None)
    if not is_disk(fs) and cache is not None:  # reads happen later
        cache.fetcher = client_errors(path)(cache.fetcher)
        handle.cache = object_store.fetching_as_read(cache, ahead)
    return handle  # type: ignore[no-any-return]


def read_text(path: str, expected: str = AGAIN) -> str:
    """Return a file's text by one request; `expected`: what it should be, for messages.

    Raises DataError: it is missing, or not UTF-8.
    """
    try:
        return read_at_once(path).decode("utf-8")
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 at byte {error.start}; {expected}") from error


def read_json(path: str, expected: str = AGAIN) -> dict[str, Any]:
    """Return the object in a JSON file; DataError: as `read_text`, or it has none."""
    try:
        content = json.loads(read_text(path, expected))
    except ValueError as error:
        raise DataError(f"{path} is no JSON ({error}); {expected}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} contains no JSON object; {expected}")
    return content


def read_tsv(path: str) -> list[dict[str, str]]:
    """Return the rows of a TSV file by column; the first line is the header, quotes are text."""
    header, *rows = (line.split("\t") for line in read_text(path).splitlines() or [""])
    return [dict(zip(header, row, strict=False)) for row in rows]


@with_client_errors
def has_file(path: str) -> bool:
    """Return whether a file that is never empty exists; one request, unlike `exists`."""
    fs, inner = filesystem(path)
    if is_disk(fs):
        return os.path.isfile(inner)
    with contextlib.suppress(FileNotFoundError):
        return bool(fs.cat_file(inner, start=0, end=1))
    return False


@contextlib.contextmanager
def atomic_output(
    path: str,
    commit: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    *,
    opener: Opener = open_unlinked,
) -> Iterator[IO[bytes]]:
    """Open `path` for writing bytes; the file appears only if the block succeeds.

    Args:
        commit: context in which the file gets its name; if entering it raises, the file does not
            appear.
        opener: on a disk, who else may read the file: `accounts.open_private`, `open_record`.
    """
    fs, inner = filesystem(path)
    if not is_disk(fs):
        with _remote_output(fs, inner, path, commit) as remote:
            yield remote
        return
    os.makedirs(os.path.dirname(inner) or ".", exist_ok=True)
    directory, name = os.path.split(inner)
    # A kill leaves the temporary file: its `_` excludes it from the artifact of a rerun.
    unique = f"{TEMPORARY}{name}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    temporary = os.path.join(directory, unique)
    try:
        with naming(path), open(temporary, "wb", opener=opener) as handle:
            yield handle
            handle.flush()
            # Before the rename, or a crash could leave the name with no content.
            os.fsync(handle.fileno())
        # After the data is on the disk, right before the name: the right may be lost while writing.
        check_right(path)
        with commit():
            os.replace(temporary, inner)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def _remote_output(
    fs: fsspec.AbstractFileSystem,
    inner: str,
    path: str,
    commit: Callable[[], contextlib.AbstractContextManager[None]],
) -> Iterator[IO[bytes]]:
    """Open an object for writing; unlike fsspec's own `with`, discard it after an exception."""
    with object_store.writing(path), client_errors(path):
        remote = Upload(fs, inner, path)
        try:
            yield remote  # type: ignore[misc]
            remote.close()
            check_right(path)
            object_store.forget_listed(path, inner)
            with commit():
                remote.commit()
        except BaseException:
            remote.discard()
            raise


def write_bytes(path: str, data: bytes, *, opener: Opener = open_unlinked) -> None:
    """Write a file at once; `opener`: who else may read it, as in `atomic_output`."""
    with atomic_output(path, opener=opener) as handle:
        handle.write(data)


@with_client_errors
def sha256(path: str, report: Callable[[int], None] | None = None) -> tuple[str, int]:
    """Return the file's sha256 in hexadecimal, and its size in bytes.

    The file is read into one buffer, so that threads hash in parallel.

    `report`: called with the number of bytes after each read.
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


@with_client_errors
def stat(path: str) -> dict[str, Any]:
    """Return fsspec's info of a file: at least `name`, `size` and `type`.

    In a store it may be `LISTING_SECONDS` old, unless this process has changed the object.
    """
    fs, inner = filesystem(path)
    listed = object_store.listed(path, inner)
    if listed is not None:
        return listed
    try:
        return dict(fs.info(inner))
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the path") from error


@with_client_errors
def mtime(path: str) -> float:
    """Return the file's Unix time of change by its store's clock; 0 if it does not exist."""
    fs, inner = filesystem(path)
    with contextlib.suppress(FileNotFoundError):
        return float(fs.modified(inner).timestamp())
    return 0.0


@with_client_errors
def etag(path: str) -> str | None:
    """Return the store's tag of the file's content, which changes with the bytes; None: no tag."""
    info = stat(path)
    tag = next((str(info[name]).strip('"') for name in _TAGS if info.get(name)), "")
    is_weak = tag.startswith("W/")  # may stay when bytes change
    return f"{tag} {info.get('size')}" if tag and not is_weak else None
