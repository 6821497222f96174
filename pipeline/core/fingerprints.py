"""Fingerprints of inputs that are no artifacts.

Of a part of an artifact, such as a kept checkpoint, it is the artifact's with the part's place in it: `ab12…/checkpoints/step-00008000`.
It is known before the part is there, is known after it was pruned, and leads on to what the artifact was made from.

Of a file on a disk it is the sha256 of its bytes, remembered by size and time of change in a small SQLite file in the user's cache
directory; without a writable one the file is read again. Of a file in a store it is the store's own tag for its content (ETag, MD5 or
CRC32C), so that nothing is downloaded to find out that nothing is to do; where the store gives none, its bytes are read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path

from pipeline.core import artifact, claim, storage
from pipeline.core.errors import DataError

DEEPEST_PART = 3  # names below an artifact: checkpoints/step-00008000/tokenizer
STORE_THREADS = 16  # questions to a store at once


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/cloze`, by default `~/.cache/cloze`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cloze"


_OPEN: ContextVar[sqlite3.Connection | None] = ContextVar("open memory of file hashes", default=None)
_ASKED: ContextVar[dict[str, str] | None] = ContextVar("fingerprints of the inputs that were asked for already", default=None)


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Keep the memory of file hashes open for many questions, such as a plan of hundreds of nodes asks; the same path is asked for once."""
    with _memory() as memory:
        token, asked = _OPEN.set(memory), _ASKED.set({})
        try:
            yield
        finally:
            _OPEN.reset(token)
            _ASKED.reset(asked)


@contextlib.contextmanager
def _memory() -> Iterator[sqlite3.Connection]:
    known = _OPEN.get()
    if known is not None:
        yield known
        return
    try:
        directory = cache_directory()
        directory.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(directory / "file-hashes.sqlite", timeout=10)
        connection.execute("CREATE TABLE IF NOT EXISTS hashes (path TEXT PRIMARY KEY, size INT, mtime INT, sha256 TEXT)")
    except (OSError, sqlite3.Error):
        connection = sqlite3.connect(":memory:")
        connection.execute("CREATE TABLE hashes (path TEXT PRIMARY KEY, size INT, mtime INT, sha256 TEXT)")
    try:
        yield connection
        with contextlib.suppress(sqlite3.Error):  # a full or read-only home costs only the memory
            connection.commit()
    finally:
        connection.close()


def file_hashes(paths: Iterable[str]) -> dict[str, str]:
    """The sha256 of each file, read only where size or mtime changed since the last time."""
    hashes = {}
    with _memory() as memory:
        for path in paths:
            if not storage.is_local(path):
                hashes[path] = storage.sha256(path)[0]
                continue
            absolute = storage.readable(os.path.abspath(path))
            try:
                stat = os.stat(path)
            except OSError as error:
                raise DataError(f"{path} cannot be read ({error.strerror}); check the path") from error
            known = memory.execute("SELECT size, mtime, sha256 FROM hashes WHERE path = ?", (absolute,)).fetchone()
            if known and known[:2] == (stat.st_size, stat.st_mtime_ns):
                hashes[path] = known[2]
                continue
            hashes[path] = storage.sha256(path)[0]
            row = (absolute, stat.st_size, stat.st_mtime_ns, hashes[path])
            with contextlib.suppress(sqlite3.Error):
                memory.execute("INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?)", row)
    return hashes


def file_fingerprints(paths: Iterable[str]) -> dict[str, str]:
    """What names the content of each file: its sha256, or of a file in a store what its tag comes to."""
    names = list(paths)
    remote = [path for path in names if not storage.is_local(path)]
    with ThreadPoolExecutor(STORE_THREADS) as pool:
        tags = dict(zip(remote, pool.map(storage.content_tag, remote), strict=True))
    tagged = {path: combine([("tag", tag)]) for path, tag in tags.items() if tag is not None}
    return tagged | file_hashes(path for path in names if path not in tagged)


def combine(named: Iterable[tuple[str, str]]) -> str:
    """One hash over (name, hash) pairs, whatever their order."""
    digest = hashlib.sha256()
    for name, value in sorted(named):
        digest.update(f"{name}\0{value}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def owner_of(fingerprint: str) -> str:
    """The fingerprint of the artifact that this one names, or names a part of."""
    return fingerprint.partition("/")[0]


def part_of(fingerprint: str) -> str:
    """Where in its artifact the part lies that this fingerprint names; empty where it names a whole one."""
    return fingerprint.partition("/")[2]


def artifact_fingerprint(path: str) -> str:
    """The fingerprint of the artifact that the directory holds or is to hold; empty where it is no artifact's."""
    if artifact.is_artifact(path):
        return artifact.read_manifest(path).fingerprint
    begun = claim.read(path)
    return "" if begun is None else begun.fingerprint


def part_fingerprint(path: str) -> str:
    """That of a part of an artifact, finished or not; empty where `path` does not lie below one. No byte of the part is read."""
    place, names = storage.absolute(path).rstrip("/"), list[str]()
    for _ in range(DEEPEST_PART):
        place, _, name = place.rpartition("/")
        if not name or not place.rstrip("/") or place.endswith(":/") or name.startswith("_"):
            return ""
        names.insert(0, name)
        owner = artifact_fingerprint(place)
        if owner:
            return "/".join([owner, *names])
    return ""


def input_fingerprint(path: str) -> str:
    """The fingerprint of a stage's input: an artifact's own, that of a part of one, else of the file or all files below the directory.

    Raises:
        DataError: nothing is at `path`, or the directory is empty.
    """
    return once(path, lambda: _input_fingerprint(path))


def once(what: str, make: Callable[[], str]) -> str:
    """What `make` gives; inside `remembering` it is made once. Args: what: names it."""
    asked = _ASKED.get()
    if asked is None:
        return make()
    if what not in asked:
        asked[what] = make()
    return asked[what]


def _input_fingerprint(path: str) -> str:
    if artifact.is_artifact(path):
        return artifact.read_manifest(path).fingerprint
    part = part_fingerprint(path)
    if part:
        return part
    if not storage.exists(path):
        raise DataError(f"{path} does not exist; check the path")
    if not storage.is_dir(path):
        return file_fingerprints([path])[path]
    names = [name for name in storage.list_files(path) if not any(p.startswith("_") for p in name.split("/"))]
    if not names:
        raise DataError(f"{path} is an empty directory; point to one that holds data")
    hashes = file_fingerprints(storage.join(path, name) for name in names)
    return combine((name, hashes[storage.join(path, name)]) for name in names)
