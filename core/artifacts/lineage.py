"""Artifacts that an artifact was made from: found by fingerprint, in directories near it."""

from __future__ import annotations

import contextlib
import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cloze.core import storage
from cloze.core.artifacts import artifact, fingerprints
from cloze.core.artifacts.artifact import BUILDING, MANIFEST, Manifest
from cloze.core.errors import DataError


def containing_artifact(path: str) -> str:
    """Return the artifact, finished or not, that contains `path`; default: `path` itself."""
    own = path.rstrip("/")
    if any(storage.has_file(storage.join(own, name)) for name in (MANIFEST, BUILDING)):
        return own
    above = fingerprints.directories_above(own)
    return next((parent for parent in above if _has_any(parent, MANIFEST, BUILDING)), path)


def _has_any(directory: str, *names: str) -> bool:
    """Return whether a directory has one of the files, and the credentials suffice to read it."""
    with storage.ignoring_denial():
        if any(storage.has_file(storage.join(directory, name)) for name in names):
            return True
    return False


def input_contents(inputs: Mapping[str, str]) -> dict[str, str]:
    """Return `Manifest.inputs` for input paths by key."""
    found = {name: _content(path)[0] for name, path in inputs.items()}
    return {name: sha256 for name, sha256 in found.items() if sha256}


def input_plugins(inputs: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the plug-ins that made the inputs, as in `Manifest.plugins`."""
    found: dict[str, dict[str, Any]] = {}
    for path in inputs.values():
        for name, about in _content(path)[1].items():
            rows = {*about["rows"], *found.get(name, {}).get("rows", ())}
            found[name] = {**about, "rows": sorted(rows)}
    return found


def _content(path: str) -> tuple[str, dict[str, Any]]:
    """Return content hash and plug-ins of the finished artifact that contains `path`."""

    def read() -> str:
        manifest = artifact.find_manifest(containing_artifact(path))
        # As text, which is what `memoize` keeps.
        return json.dumps(manifest and (manifest.content_sha256, manifest.plugins))

    found = json.loads(fingerprints.memoize(f"content of {path}", read))
    return (found[0], found[1]) if found else ("", {})


class NearbyArtifacts:
    """Finished and unfinished artifacts near a path by fingerprint; distant ones are read last."""

    def __init__(self, path: str) -> None:
        self._unread, self._paths = _directories_around(path), dict[str, str]()

    def find(self, fingerprint: str) -> str | None:
        """Return the directory of the artifact; None: it is not near."""
        while fingerprint not in self._paths:
            directory = next(self._unread, None)
            if directory is None:
                return None
            with contextlib.suppress(DataError):  # a manifest.json of another program
                self._paths.setdefault(fingerprints.artifact_fingerprint(directory), directory)
        return self._paths[fingerprint]


def _directories_around(path: str) -> Iterator[str]:
    """Yield the artifact that contains `path`, then artifacts next to it, then others nearby."""
    owner = containing_artifact(path)
    yield owner
    parent = posixpath.dirname(owner)
    grandparent = posixpath.dirname(parent)
    yield from _artifacts_in([parent])
    if storage.has_scheme(posixpath.dirname(grandparent)) or not storage.has_scheme(owner):
        # not a bucket, which may have thousands of directories of raw data
        yield from _artifacts_in([grandparent])
        yield from _artifacts_in(directories_in(grandparent))


def _artifacts_in(directories: Iterable[str]) -> Iterator[str]:
    """Yield the artifacts directly below directories, the finished ones first."""
    inner = [own for directory in directories for own in directories_in(directory)]
    for mark in (MANIFEST, BUILDING):
        yield from (own for own in inner if _has_any(own, mark))


def directories_in(directory: str) -> list[str]:
    """Return the directories in a directory, without links; empty if it cannot be listed."""
    with contextlib.suppress(OSError), storage.ignoring_denial():
        names = storage.list_names(directory, only_directories=True)
        return [storage.join(directory, name) for name in names]
    return []


def finished_ancestors(path: str) -> dict[str, Manifest]:
    """Return the finished artifact that contains `path`, and those it was made from.

    Returns: Manifests by directory, the nearest first; without artifacts that are not near.
    """
    owner = storage.absolute(containing_artifact(path))
    nearby, found = NearbyArtifacts(owner), dict[str, Manifest]()
    waiting = [owner] if artifact.is_artifact(owner) else []
    while waiting:
        directory = waiting.pop(0)
        if directory in found:
            continue
        found[directory] = artifact.read_manifest(directory)
        parents = map(fingerprints.artifact_fingerprint_of, found[directory].parents.values())
        near = map(nearby.find, parents)
        waiting += [parent for parent in near if parent and artifact.is_artifact(parent)]
    return found
