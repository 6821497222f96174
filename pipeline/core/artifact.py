"""Artifacts: directories that are finished if and only if their `manifest.json` exists.

The manifest is written last (temporary file, fsync, rename). It names every file with size and sha256, so
that anybody can verify the artifact, and the fingerprint, so that a rerun knows there is nothing to do.
Names that begin with `_` are the builder's own (scratch, lock, log of what is being built) and never part of it.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import importlib.metadata
import json
import os
import posixpath
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from typing import Any

from pipeline.core import storage
from pipeline.core.errors import DataError

FORMAT = 1
MANIFEST = "manifest.json"
_HASH_BYTES = 1 << 20
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES)
# Whose version can change what a stage makes, or how it is run.
RECORDED_PACKAGES = (
    "cloze apache-beam backports.zstd deepspeed fastwarc fsspec ftfy lxml mlflow numpy orjson phonenumberslite prefect py3langid py7zr"
    " pyarrow resiliparse safetensors sentencepiece sentencex tokenizers torch transformers"
).split()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of an artifact. `data` is false for logs and metrics, whose bytes hold times."""

    path: str
    size: int
    sha256: str
    data: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What `manifest.json` holds; see DESIGN in docs/architecture.md."""

    stage: str
    version: int
    fingerprint: str
    build: str = ""  # names the making of it, however many tries it took
    parents: dict[str, str]  # input's name -> its fingerprint
    config: dict[str, Any]  # the resolved config
    files: tuple[FileEntry, ...]
    rows: int = 0
    tokens: int = 0
    counters: dict[str, int] = field(default_factory=dict)  # what was dropped and why, and other counts
    summary: dict[str, Any] = field(default_factory=dict)  # the stage's own figures, as `--json` prints them
    execution: dict[str, Any] = field(default_factory=dict)  # how it was run; no part of the fingerprint
    seconds: float = 0.0
    created: str = ""  # UTC, ISO 8601
    packages: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def content_sha256(self) -> str:
        """One hash over the data files' names and bytes: equal for equal data, whenever and wherever made."""
        return content_sha256(self.files)


def content_sha256(files: Iterable[FileEntry]) -> str:
    digest = hashlib.sha256()
    for entry in sorted(files, key=lambda entry: entry.path):
        if entry.data:
            digest.update(f"{entry.path}\0{entry.sha256}\n".encode())
    return digest.hexdigest()


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces, the same text for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def fingerprint(stage: str, version: int, config: Mapping[str, Any], parents: Mapping[str, str]) -> str:
    """The sha256 that names a stage's output before it is made.

    Args:
        stage: the stage's name.
        version: raised by hand when the same input gives other output.
        config: what the config says about the result, without paths and ways of running.
        parents: each input's name and fingerprint.
    """
    content = {"stage": stage, "version": version, "config": config, "parents": dict(parents)}
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def package_versions() -> dict[str, str]:
    """Versions of the packages that shape a result; recorded, but no part of any fingerprint."""
    return dict(_package_versions())


@functools.cache  # reading them takes longer than the rest of a small artifact
def _package_versions() -> Mapping[str, str]:
    versions = {}
    for name in RECORDED_PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def is_artifact(path: str) -> bool:
    return storage.exists(storage.join(path, MANIFEST))


def read_manifest(path: str) -> Manifest:
    """The manifest of the artifact at `path`; `DataError` if it is unfinished, damaged, or from a later format."""
    name = storage.join(path, MANIFEST)
    if not storage.exists(name):
        raise DataError(f"{path} holds no finished artifact ({MANIFEST} is missing); run the stage that makes it")
    try:
        content = json.loads(storage.read_text(name))
        if content.get("format") != FORMAT:
            raise DataError(
                f"{name} has format {content.get('format')}, this program reads {FORMAT}; use the Cloze that made it"
            )
        content["files"] = tuple(FileEntry(**entry) for entry in content["files"])
        content.pop("content_sha256", None)
        return Manifest(**content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{name} is damaged ({error}); remove the directory and run the stage again") from error


def write_manifest(path: str, manifest: Manifest) -> None:
    """Finish the artifact at `path`."""
    content = {**asdict(manifest), "content_sha256": manifest.content_sha256}
    storage.write_bytes(storage.join(path, MANIFEST), (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())


def data_files(path: str) -> list[str]:
    """The relative names of an artifact's files: all but the manifest and the builder's own."""
    return [
        name
        for name in storage.list_files(path)
        if name != MANIFEST and not any(part.startswith("_") for part in name.split("/"))
    ]


def link_file(source: str, target: str) -> None:
    """Make `target` the same file as `source`: a hard link, or a copy where links are impossible, on the server if it can."""
    from_fs, from_path = storage.filesystem(source)
    to_fs, to_path = storage.filesystem(target)
    storage.remove(target)
    if storage.is_local(source) and storage.is_local(target):
        os.makedirs(os.path.dirname(to_path), exist_ok=True)
        try:
            os.link(from_path, to_path)
            return
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
    elif from_fs == to_fs:
        from_fs.copy(from_path, to_path)
        return
    with storage.open_input(source) as reader, storage.atomic_output(target) as writer:
        shutil.copyfileobj(reader, writer, storage.CHUNK_BYTES)


def hash_files(
    path: str,
    names: Iterable[str],
    volatile: Iterable[str] = (),
    threads: int = 4,
    report: Callable[[int], None] | None = None,
) -> tuple[FileEntry, ...]:
    """Size and sha256 of each file below `path`, several at a time.

    Args:
        path: of the artifact.
        names: relative to it.
        volatile: patterns of names that are marked as no data.
        threads: files read at once.
        report: told the bytes that were read, again and again, from any thread.
    """
    patterns = tuple(volatile)

    def entry(name: str) -> FileEntry:
        digest, size = _sha256(storage.join(path, name), report)
        return FileEntry(path=name, size=size, sha256=digest, data=not any(fnmatch(name, p) for p in patterns))

    with ThreadPoolExecutor(threads) as pool:
        return tuple(pool.map(entry, sorted(names)))


def _sha256(path: str, report: Callable[[int], None] | None) -> tuple[str, int]:
    """sha256 and size of a file, read into one buffer again and again: threads hash without waiting for each other."""
    digest, size, buffer = hashlib.sha256(), 0, bytearray(_HASH_BYTES)
    view = memoryview(buffer)
    with storage.open_input(path) as handle:
        while count := handle.readinto(buffer):  # type: ignore[attr-defined]
            digest.update(view[:count])
            size += count
            if report is not None:
                report(count)
    return digest.hexdigest(), size


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What `cloze verify` found. `content_sha256` is over the bytes on disk, not over what the manifest says."""

    ok: bool
    content_sha256: str
    errors: tuple[str, ...]
    files: int = 0
    bytes: int = 0


def find_artifacts(path: str) -> list[str]:
    """The artifact at `path`, or else all below it, but for those inside of others; links are not followed.

    Raises:
        DataError: there is none.
    """
    if is_artifact(path):
        return [path]
    found: list[str] = []
    names = storage.list_files(path) if storage.is_dir(path) else []
    for name in sorted(names, key=lambda name: (name.count("/"), name)):
        place = storage.join(path, posixpath.dirname(name))
        if posixpath.basename(name) == MANIFEST and not any(place.startswith(f"{other}/") for other in found):
            found.append(place)
    if not found:
        raise DataError(f"{path} holds no finished artifact ({MANIFEST} is missing); run the stage that makes it")
    return sorted(found)


def verify(path: str, threads: int = 4, report: Callable[[int], None] | None = None) -> Verification:
    """Read every file of the artifact again and compare it with the manifest.

    Args:
        path: of the artifact.
        threads: files read at once.
        report: told the bytes that were read, from any thread.
    """
    manifest = read_manifest(path)
    recorded = {entry.path: entry for entry in manifest.files}
    present = set(data_files(path))
    errors = [f"{name} is missing" for name in sorted(recorded.keys() - present)]
    errors += [f"{name} is not in the manifest" for name in sorted(present - recorded.keys())]
    volatile = [entry.path for entry in manifest.files if not entry.data]
    found = hash_files(path, recorded.keys() & present, volatile, threads, report)
    for entry in found:
        expected = recorded[entry.path]
        if entry.size != expected.size:
            errors.append(f"{entry.path} has {entry.size} bytes, the manifest says {expected.size}")
        elif entry.sha256 != expected.sha256:
            errors.append(f"{entry.path} has sha256 {entry.sha256[:12]}…, the manifest says {expected.sha256[:12]}…")
    return Verification(
        ok=not errors,
        content_sha256=content_sha256(found),
        errors=tuple(errors),
        files=len(found),
        bytes=sum(entry.size for entry in found),
    )
