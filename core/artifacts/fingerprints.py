"""Fingerprints of inputs: artifacts, parts of artifacts, files and directories.

A part of an artifact, such as a checkpoint, has the artifact's fingerprint and the relative path:
`ab12…/checkpoints/step-00008000`. It is known before the part exists and after the part was pruned,
and identifies what the artifact was made from.

A file in a store has the store's content tag (ETag, MD5 or CRC32C), so that a cache check downloads
nothing. A local file, and one of a store without tags, has the sha256 of its bytes. Many bytes are
read by threads, even more by workers, and once as long as size and time stay: hashes are in a
SQLite file in the user's cache directory. If that is not writable, files are read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field

from cloze.core import storage
from cloze.core.artifacts import artifact, claim
from cloze.core.errors import DataError
from cloze.core.hub_names import describe_siblings
from cloze.core.object_store import within
from cloze.core.places import cache_directory

DEEPEST_PART = 3  # names below an artifact: checkpoints/step-00008000/tokenizer
STORE_THREADS = 16  # concurrent requests to a store
COMMIT_SECONDS = 0.2  # of hashing that a kill may lose, in addition to the current file
THREADS_BYTES = 64 << 20  # of local files; fewer take less time without threads
WORKERS_BYTES = 1 << 30  # of local files; fewer take less time than starting workers
SURE_AGE = 5.0  # seconds after which a store's file of the same time has the same content
WAIT_SECONDS = 2.0  # for another program that locks the cache
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS hashes (path TEXT PRIMARY KEY, size INT, mtime INT, sha256 TEXT)"
)


_HUB_ACCOUNT = re.compile(r"hf://(datasets/|spaces/)?[^/]*")  # it has no files of its own


Stamp = tuple[int, int]  # size and time of change in nanoseconds
Hasher = Callable[[Sequence[str], Sequence[Stamp | None]], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Seen:
    """A file as it was when its fingerprint was taken. `stamp`: size and mtime; None in a store."""

    stamp: Stamp | None
    fingerprint: str


def hash_by_threads(paths: Sequence[str], stamps: Sequence[Stamp | None]) -> Iterator[str]:
    """Yield the sha256 of each file, read by threads of this process."""
    del stamps
    with ThreadPoolExecutor(STORE_THREADS) as pool:
        for sha256, _ in pool.map(storage.sha256, paths):
            yield sha256


@dataclass(frozen=True, slots=True)
class Session:
    """What look-ups of fingerprints share."""

    cache: sqlite3.Connection | None = None
    inputs: dict[str, str] | None = None  # by path; None: each is taken anew
    hasher: Hasher = hash_by_threads
    seen: dict[str, Seen] | None = None  # files as they are now; None: nobody watches
    known: Mapping[str, Seen] = field(default_factory=dict)  # unchanged ones are not read

    def note(self, path: str, seen: Seen) -> None:
        if self.seen is not None:
            self.seen[path] = seen


_SESSION: ContextVar[Session] = ContextVar("session", default=Session())  # noqa: B039


@contextlib.contextmanager
def hash_cache_session() -> Iterator[None]:
    """Keep the hash cache open for many look-ups, such as a plan of hundreds of nodes.

    Each path is looked up once.
    """
    with _open_cache() as cache, within(_SESSION, cache=cache, inputs={}):
        yield


def hashing_by(hasher: Hasher) -> AbstractContextManager[None]:
    """Let `hasher` return the sha256 of many bytes of files, from paths and stamps."""
    return within(_SESSION, hasher=hasher)


@contextlib.contextmanager
def watching(known: Mapping[str, Seen] | None = None) -> Iterator[dict[str, Seen]]:
    """Collect the files fingerprinted in the block; unchanged files of `known` are not read."""
    seen: dict[str, Seen] = {}
    # inputs=None: a fingerprint from before the block would watch nothing.
    with within(_SESSION, seen=seen, known=known or {}, inputs=None):
        yield seen


def difference(before: Mapping[str, Seen], now: Mapping[str, Seen]) -> str | None:
    """Describe a file that changed, was added or was removed; None if there is none."""
    for path in sorted(before.keys() & now.keys()):
        if before[path].fingerprint != now[path].fingerprint:
            stamps = before[path].stamp, now[path].stamp  # None in a store
            sizes = [f"{stamp[0]:,}" for stamp in stamps if stamp is not None]
            resize = f" ({sizes[0]} bytes before, {sizes[1]} now)" if len({*sizes}) > 1 else ""
            return f"{path} changed while it was read{resize}"
    if added := now.keys() - before.keys():
        return f"{min(added)} was added while its directory was read"
    if removed := before.keys() - now.keys():
        return f"{min(removed)} was removed while its directory was read"
    return None


@contextlib.contextmanager
def _open_cache() -> Iterator[sqlite3.Connection]:
    """Yield the session's cache, or open the user's, or an empty one if that is impossible."""
    shared = _SESSION.get().cache
    if shared is not None:
        yield shared
        return
    try:
        directory = cache_directory()
        directory.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(directory / "file-hashes.sqlite", timeout=WAIT_SECONDS)
        connection.execute(_SCHEMA)
    except (OSError, sqlite3.Error):
        connection = sqlite3.connect(":memory:")
        connection.execute(_SCHEMA)
    with contextlib.closing(connection):
        yield connection


def link_unchanged(directory: str, entry: artifact.FileEntry, target: str) -> None:
    """Link a file of the artifact in `directory` (`artifact.link_file`).

    Raises DataError: it has not the size, or on a disk not the sha256, that the manifest says.
    """
    source = storage.join(directory, entry.path)
    if int(storage.stat(source)["size"]) != entry.size or (
        storage.is_local(source) and file_hashes([source])[source] != entry.sha256
    ):
        raise DataError(
            f"{source} does not have the sha256 that the manifest says; make {directory} again"
        )
    artifact.link_file(source, target)
    if storage.is_local(source) == storage.is_local(target):  # no byte has passed through here
        storage.note_written({target: (entry.sha256, entry.size)})


def _key(path: str) -> str:
    """Return the name of a file in the cache."""
    return storage.printable_name(os.path.abspath(path)) if storage.is_local(path) else path


def _known(cache: sqlite3.Connection, path: str, stamp: Stamp | None) -> str | None:
    """Return the sha256 of a file whose size and time are as they were; else None."""
    seen = _SESSION.get().known.get(path)
    if seen is not None and stamp is not None and seen.stamp == stamp:
        return seen.fingerprint
    row = cache.execute(
        "SELECT size, mtime, sha256 FROM hashes WHERE path = ?", (_key(path),)
    ).fetchone()
    return str(row[2]) if row and row[:2] == stamp else None


class _Writer:
    """Writes rows into the hash cache, one transaction per `COMMIT_SECONDS`."""

    def __init__(self, cache: sqlite3.Connection) -> None:
        self._cache: sqlite3.Connection | None = cache
        self._rows: list[tuple[str, int, int, str]] = []
        self._committed = time.monotonic()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._commit()

    def add(self, path: str, stamp: Stamp | None, sha256: str) -> str:
        """Add a file, if its time is known; return its sha256."""
        if stamp is not None:
            self._rows.append((_key(path), *stamp, sha256))
        if time.monotonic() - self._committed >= COMMIT_SECONDS:
            self._commit()
        return sha256

    def _commit(self) -> None:
        """Write the rows; stop after an error, such as a read-only home or a locked database."""
        rows, self._rows = self._rows, []
        if rows and self._cache is not None:
            try:
                with self._cache as cache:
                    cache.executemany("INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?)", rows)
            except sqlite3.Error:
                self._cache = None
        self._committed = time.monotonic()


def file_fingerprints(paths: Iterable[str]) -> dict[str, str]:
    """Return the content hash of each file: its sha256, or the hash of its store's tag."""
    names = list(paths)
    remote = [path for path in names if not storage.is_local(path)]
    with ThreadPoolExecutor(STORE_THREADS) as pool:
        tags = dict(zip(remote, pool.map(storage.etag, remote), strict=True))
    tagged = {path: combine_hashes([("tag", tag)]) for path, tag in tags.items() if tag is not None}
    for path, tag in tagged.items():
        _SESSION.get().note(path, Seen(None, tag))
    return tagged | file_hashes(path for path in names if path not in tagged)


def file_hashes(paths: Iterable[str]) -> dict[str, str]:
    """Return the sha256 of each file, read only if size or mtime changed since the last time.

    Many bytes are read in parallel. Hashes are committed as they are computed: a kill loses the
    files that are being read, and the database is locked only while rows are written.
    """
    names, session, hashes = list(paths), _SESSION.get(), dict[str, str]()
    with (
        _open_cache() as cache,
        _Writer(cache) as writer,
        ThreadPoolExecutor(STORE_THREADS) as pool,
    ):
        is_local = all(map(storage.is_local, names))
        stamps = dict(zip(names, (map if is_local else pool.map)(_stamp, names), strict=True))
        for path, stamp in stamps.items():
            if (sha256 := _known(cache, path, stamp)) is not None:
                hashes[path] = sha256
        unread = [path for path in stamps if path not in hashes]
        size = sum(stamp[0] for path in unread if (stamp := stamps[path]) is not None)
        if is_local and size < THREADS_BYTES:
            found: Iterable[str] = (storage.sha256(path)[0] for path in unread)
        else:
            hasher = hash_by_threads if is_local and size < WORKERS_BYTES else session.hasher
            found = hasher(unread, [stamps[path] for path in unread]) if unread else ()
        for path, sha256 in zip(unread, found, strict=True):
            hashes[path] = writer.add(path, stamps[path], sha256)
    for path, sha256 in hashes.items():
        session.note(path, Seen(stamps[path] if storage.is_local(path) else None, sha256))
    return hashes


def _stamp(path: str) -> Stamp | None:
    """Return a file's size and time; None: no time, or a store's may change within the same.

    Raises DataError: a local file cannot be read.
    """
    if storage.is_local(path):
        try:
            stat = os.stat(path)
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}); check the path") from error
        return stat.st_size, stat.st_mtime_ns
    try:
        changed = storage.mtime(path)
    except NotImplementedError:
        return None
    size = int(storage.stat(path)["size"] or 0)
    return (size, int(changed * 1e9)) if 0 < changed < time.time() - SURE_AGE else None


def combine_hashes(pairs: Iterable[tuple[str, str]]) -> str:
    """Return one hash over (name, hash) pairs, independent of their order."""
    digest = hashlib.sha256()
    for name, value in sorted(pairs):
        # Names may have bytes that are no UTF-8; NUL is in none of them, so pairs cannot run
        # together.
        digest.update(f"{name}\0{value}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def artifact_fingerprint_of(fingerprint: str) -> str:
    """Return the artifact's fingerprint from the fingerprint of the artifact or of a part."""
    return fingerprint.partition("/")[0]


def subpath_of(fingerprint: str) -> str:
    """Return the relative path of the part from its fingerprint; empty for a whole artifact."""
    return fingerprint.partition("/")[2]


def artifact_fingerprint(path: str) -> str:
    """Return the fingerprint of the finished or unfinished artifact in a directory; else ''."""
    manifest = artifact.find_manifest(path)
    if manifest is not None:
        return manifest.fingerprint
    build = claim.read(path)
    return "" if build is None else build.fingerprint


def directories_above(path: str) -> Iterator[str]:
    """Yield the directories of which `path` may be a part, up to a bucket; the nearest first."""
    directory = path.rstrip("/")
    for _ in range(DEEPEST_PART):
        directory = posixpath.dirname(directory)
        if not directory.strip("/") or (storage.has_scheme(path) and "://" not in directory):
            return
        if _HUB_ACCOUNT.fullmatch(directory):
            return
        yield directory


def part_fingerprint(path: str) -> str:
    """Return the fingerprint of a part of an artifact, without reading the part; else ''."""
    path = storage.absolute(path).rstrip("/")
    for directory in directories_above(path):
        subpath = path[len(directory) :]
        # Such files are no part of the artifact, so its fingerprint says nothing about them.
        if subpath.startswith("/_"):
            break
        with storage.ignoring_denial():
            if owner := artifact_fingerprint(directory):
                return owner + subpath
    return ""


def input_fingerprint(path: str) -> str:
    """Return the fingerprint of an input: an artifact, a part of one, a file or a directory.

    Raises DataError: nothing is at `path`, or the directory is empty.
    """
    return memoize(path, lambda: _input_fingerprint(path))


def memoize(what: str, make: Callable[[], str]) -> str:
    """Return `make()`, called once per key `what` in a `hash_cache_session`."""
    fingerprints = _SESSION.get().inputs
    if fingerprints is None:
        return make()
    if what not in fingerprints:
        fingerprints[what] = make()
    return fingerprints[what]


def _input_fingerprint(path: str) -> str:
    manifest = artifact.find_manifest(path)
    if manifest is not None:
        return manifest.fingerprint
    fingerprint = part_fingerprint(path)
    if fingerprint:
        return fingerprint
    if not storage.exists(path):
        raise DataError(f"{path} does not exist{describe_siblings(path)}; check the path")
    if not storage.is_dir(path):
        return file_fingerprints([path])[path]
    names = [
        name
        for name in storage.list_files(path)
        if not any(component.startswith("_") for component in name.split("/"))
    ]
    if not names:
        raise DataError(f"{path} is an empty directory; use one that contains data")
    hashes = file_fingerprints(storage.join(path, name) for name in names)
    return combine_hashes((name, hashes[storage.join(path, name)]) for name in names)
