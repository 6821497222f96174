"""Artifacts: directories that are finished if and only if their `manifest.json` exists.

The manifest is written last (temporary file, fsync, rename). It lists every file with size and
sha256, for verification; above `MOST_LISTED` files the list is `manifest.arrow`, which is read only
where it is needed. It contains the fingerprint, so that a rerun can reuse the artifact. Names that
begin with `_` belong to the builder (scratch, lock, claim, logs) and are never part of the
artifact.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import importlib.metadata
import itertools
import json
import os
import posixpath
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatch
from typing import Any

from cloze.core import plugins, storage
from cloze.core.artifacts.file_table import BATCH_FILES, TABLE, FileTable
from cloze.core.artifacts.file_table import FileEntry as FileEntry
from cloze.core.errors import DataError

FORMAT, TABLE_FORMAT = 1, 2  # of a manifest with its list of files, and with a table of them
MANIFEST = "manifest.json"
_MLFLOW_COPY = re.compile(r"/[0-9a-f]{32}/artifacts/")
MOST_LISTED = 10_000  # files in `manifest.json`
BUILDING = "_building.json"  # the claim of a builder: see `cloze.core.artifacts.claim`
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES)
# packages whose versions can change what a stage makes, or how it runs
RECORDED_PACKAGES = (
    "cloze-pretraining-base apache-beam backports.zstd brotli deepspeed fsspec ftfy lxml mlflow"
    " numpy orjson phonenumberslite prefect py3langid pyarrow resiliparse"
    " safetensors sentencepiece sentencex tokenizers torch trafilatura transformers"
).split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of `manifest.json`; see docs/architecture.md."""

    stage: str
    version: int
    fingerprint: str
    build: str = ""  # id of the build, equal in all attempts
    parents: dict[str, str]  # input key -> fingerprint
    # input key -> content hash of the finished artifact that it is, or is a part of
    inputs: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any]  # the resolved config
    files: tuple[FileEntry, ...] | FileTable
    rows: int = 0
    tokens: int = 0
    # what was dropped and why, and other counts
    counters: dict[str, int] = field(default_factory=dict)
    # the stage's own metrics, as `--json` prints them
    summary: dict[str, Any] = field(default_factory=dict)
    # how it was run; not in the fingerprint
    execution: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    created: str = ""  # UTC, ISO 8601
    packages: dict[str, str] = field(default_factory=dict)
    # plug-ins that made it or its inputs: name -> package, version and rows
    plugins: dict[str, dict[str, Any]] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def content_sha256(self) -> str:
        """Hash over the data files' names and bytes, equal for equal data."""
        files = self.files
        return files.content_sha256 if isinstance(files, FileTable) else content_sha256(files)

    @property
    def size(self) -> int:
        files = self.files
        return files.size if isinstance(files, FileTable) else sum(entry.size for entry in files)


def content_sha256(files: Iterable[FileEntry]) -> str:
    digest = hashlib.sha256()
    for entry in sorted(files, key=lambda entry: entry.path):
        if entry.data:
            digest.update(f"{entry.path}\0{entry.sha256}\n".encode())
    return digest.hexdigest()


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces: equal text for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def fingerprint(
    stage: str, version: int, config: Mapping[str, Any], parents: Mapping[str, str]
) -> str:
    """Return the sha256 that identifies a stage's output before it is built.

    Args:
        version: raised by hand when the same input gives other output.
        config: config values that affect the result, without paths and execution options.
        parents: fingerprints of the inputs by key.
    """
    content = {"stage": stage, "version": version, "config": config, "parents": dict(parents)}
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def package_versions() -> dict[str, str]:
    """Return versions of packages that affect results; recorded, but not in any fingerprint."""
    versions = ((name, _package_version(name)) for name in RECORDED_PACKAGES)
    return {name: version for name, version in versions if version is not None}


@functools.cache  # reading versions takes longer than the rest of a small artifact
def _package_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_artifact(path: str) -> bool:
    return storage.has_file(storage.join(path, MANIFEST))


def read_manifest(path: str) -> Manifest:
    """Read the manifest at `path`; raise `DataError` if missing, damaged or of a later format."""
    manifest = find_manifest(path)
    if manifest is None:
        raise _no_artifact(path)
    return manifest


def find_manifest(path: str) -> Manifest | None:
    """Return the manifest at `path`, read by one request; None if there is none.

    Raises DataError: it is damaged or of a later format.
    """
    name = storage.join(path, MANIFEST)
    try:
        content = json.loads(storage.read_at_once(name))
        if content.get("format") not in (FORMAT, TABLE_FORMAT):
            raise DataError(
                f"{name} has format {content.get('format')}, this program reads {FORMAT} and "
                f"{TABLE_FORMAT}; use the version of Cloze that wrote it"
            )
        files, content_hash = content["files"], content.pop("content_sha256", "")
        if content["format"] == TABLE_FORMAT:
            files = FileTable(storage.join(path, TABLE), **files, content_sha256=content_hash)
        else:
            files = tuple(FileEntry(**entry) for entry in files)
        plugins.remember(content.get("plugins", {}))
        return Manifest(**{**content, "files": files})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(
            f"{name} is damaged ({error}); remove the directory and run the stage again"
        ) from error


def _no_artifact(path: str) -> DataError:
    return DataError(
        f"{path} has no finished artifact ({MANIFEST} is missing); run the stage that builds it"
    )


def write_manifest(path: str, manifest: Manifest) -> None:
    """Finish the artifact at `path`."""
    files, content_hash = tuple(manifest.files), manifest.content_sha256
    content = {**asdict(replace(manifest, files=())), "content_sha256": content_hash}
    if len(files) <= MOST_LISTED:
        content |= {"files": [asdict(entry) for entry in files], "format": FORMAT}
    else:
        table = FileTable.write(storage.join(path, TABLE), files, content_hash)
        content |= {"files": table.facts(), "format": TABLE_FORMAT}
    if not manifest.plugins:  # so that an earlier version can read it
        del content["plugins"]
    text = json.dumps(content, indent=1, sort_keys=True) + "\n"
    storage.write_bytes(storage.join(path, MANIFEST), text.encode())


def data_files(path: str, temporary: Iterable[str] = ()) -> list[str]:
    """Return the relative names of an artifact's files, without the manifest and builder's files.

    Names at or below `temporary` are excluded, too.
    """
    excluded = {MANIFEST, TABLE, *temporary}
    return [
        name
        for name in storage.list_files(path)
        if name.split("/", 1)[0] not in excluded
        and not any(component.startswith("_") for component in name.split("/"))
    ]


@dataclass(frozen=True, slots=True)
class Claim:
    """The content of `_building.json`; `build` is the id of the build, equal in all attempts."""

    stage: str = ""
    fingerprint: str = ""  # empty while old files are removed
    build: str = ""
    temporary: tuple[str, ...] = ()  # removed after the build, relative to the directory
    token: str = ""  # of this attempt: see `fence.py`
    version: str = ""  # of the stage: an upgrade may change it
    inputs: dict[str, str] = field(default_factory=dict)  # `Manifest.inputs` of what was begun


def changed_inputs(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the keys of inputs whose content hash, as in `Manifest.inputs`, was another one then.

    A fingerprint does not depend on content: an input that was built again keeps it.
    """
    # A record without this input's hash says nothing, and counts as unchanged.
    return [name for name, content in now.items() if then.get(name, content) != content]


def read_claim(path: str) -> Claim | None:
    """Return the claim on the directory at `path`; None if it does not exist or is being removed.

    Raises DataError: the claim is damaged.
    """
    name = storage.join(path, BUILDING)
    try:
        content = dict(json.loads(storage.read_at_once(name)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError) as error:
        raise DataError(f"{name} is damaged; remove its directory") from error
    names = ("stage", "fingerprint", "build", "token", "version")
    texts = {name: str(content.get(name) or "") for name in names}
    temporary = tuple(map(str, content.get("temporary") or ()))
    return Claim(**texts, temporary=temporary, inputs=dict(content.get("inputs") or {}))


def link_file(source: str, target: str) -> None:
    """Make `target` a hard link to `source`, or else a copy, by the server if possible."""
    from_fs, from_path = storage.filesystem(source)
    to_fs, to_path = storage.filesystem(target)
    # `os.link` refuses a name that exists.
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
        from_fs.cp_file(from_path, to_path)  # `copy` expands patterns
        return
    with storage.open_input(source) as reader, storage.atomic_output(target) as writer:
        shutil.copyfileobj(reader, writer, storage.CHUNK_BYTES)


def hash_files(
    path: str,
    names: Iterable[str],
    volatile: Iterable[str] = (),
    threads: int = 4,
    report: Callable[[int], None] | None = None,
    known: Mapping[str, Sequence[Any]] | None = None,
) -> tuple[FileEntry, ...]:
    """Return size and sha256 of each file below `path`, reading several at a time.

    Args:
        volatile: patterns of names that are marked as no data.
        report: called with the number of bytes after each read, from any thread.
        known: sha256 and size of files by name, which are not read.
    """
    patterns = tuple(volatile)

    def entry(name: str) -> FileEntry:
        digest, size = (known or {}).get(name) or storage.sha256(storage.join(path, name), report)
        is_data = not any(fnmatch(name, pattern) for pattern in patterns)
        return FileEntry(path=name, size=size, sha256=digest, data=is_data)

    ordered = sorted(names)
    with ThreadPoolExecutor(threads) as pool:  # a call that waits costs more than an entry
        begins = range(0, len(ordered), BATCH_FILES)
        batches = (pool.map(entry, ordered[at : at + BATCH_FILES]) for at in begins)
        return tuple(itertools.chain.from_iterable(batches))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The result of `cloze verify`; `content_sha256` covers the bytes on disk, not the manifest."""

    ok: bool
    content_sha256: str
    errors: tuple[str, ...]
    files: int = 0
    bytes: int = 0


def find_artifacts(path: str) -> list[str]:
    """Return the artifact at `path`, or all artifacts below it except nested ones.

    Links are not followed, and the copies of manifests that MLflow keeps are none.

    Raises DataError: there is no artifact.
    """
    if is_artifact(path):
        return [path]
    artifacts: list[str] = []
    names = storage.list_files(path, follow=False) if storage.is_dir(path) else []
    for name in sorted(names, key=lambda name: (name.count("/"), name)):
        directory = storage.join(path, posixpath.dirname(name))
        is_nested = any(directory.startswith(f"{outer}/") for outer in artifacts)
        is_copy = _MLFLOW_COPY.search(f"/{name}") is not None
        if posixpath.basename(name) == MANIFEST and not is_nested and not is_copy:
            artifacts.append(directory)
    if not artifacts:
        raise _no_artifact(path)
    return sorted(artifacts)


def verify(
    path: str, threads: int = 4, report: Callable[[int], None] | None = None
) -> Verification:
    """Read every file of the artifact and compare it with the manifest.

    `report`: called with the number of bytes after each read, from any thread.
    """
    manifest = read_manifest(path)
    recorded = {entry.path: entry for entry in manifest.files}
    claim = read_claim(path) or Claim()
    present = set(data_files(path, claim.temporary))
    errors = [f"{name} is missing" for name in sorted(recorded.keys() - present)]
    errors += [f"{name} is not in the manifest" for name in sorted(present - recorded.keys())]
    volatile = [entry.path for entry in recorded.values() if not entry.data]
    entries = hash_files(path, recorded.keys() & present, volatile, threads, report)
    for entry in entries:
        expected = recorded[entry.path]
        if entry.size != expected.size:
            errors.append(f"{entry.path} has {entry.size} bytes, the manifest says {expected.size}")
        elif entry.sha256 != expected.sha256:
            errors.append(
                f"{entry.path} has sha256 {entry.sha256[:12]}…, the manifest says "
                f"{expected.sha256[:12]}…"
            )
    return Verification(
        ok=not errors,
        content_sha256=content_sha256(entries),
        errors=tuple(errors),
        files=len(entries),
        bytes=sum(entry.size for entry in entries),
    )


# Names of shard files, and of the two splits of documents.

TRAIN = "train"
HELDOUT = "heldout"
SPLITS = (TRAIN, HELDOUT)


def shard_name(prefix: str, number: int, count: int) -> str:
    """Return `train-00003-of-00016.arrow`, the name form of Hugging Face datasets."""
    return f"{prefix}-{number:05d}-of-{count:05d}.arrow"
