"""Artifacts of a runs directory: what each one is needed for, and removal of the others.

An artifact is kept if a run in progress builds or reads it, if a failed or cancelled run continues
it, if it has a champion's checkpoint, if it is the current result of a named run (its link points
at it), or if a kept artifact was made from it. All others are results of earlier configs, finished
or not.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloze.core import storage
from cloze.core.artifacts import artifact, fingerprints
from cloze.core.artifacts.artifact import BUILDING, MANIFEST, Claim
from cloze.core.artifacts.lock import is_locked, locked
from cloze.core.errors import DataError, UsageError
from cloze.flows.run import status_file

DAY = 24 * 3600.0


@dataclass(slots=True, kw_only=True)
class StoredArtifact:
    """An artifact, finished or not, below the runs directory.

    Attributes:
        run: name of the run whose directory contains it.
        size: bytes on disk that removing it frees; files with other hard links do not count.
        written: Unix seconds of the end of the build, or of its begin.
        used: Unix seconds of the last start of a run that made or reused it.
        needed_for: reasons to keep it; empty: it can be removed.
    """

    path: Path
    run: str
    size: int
    written: float
    used: float
    fingerprint: str = ""
    parents: frozenset[str] = frozenset()
    needed_for: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.run}/{self.path.name}"


def survey(
    runs: Path,
    champions: Iterable[str] = (),
    *,
    discarded: Collection[str] = (),
    unused_days: float = 0.0,
) -> list[StoredArtifact]:
    """Return all artifacts of all runs with what they are needed for, largest first.

    Args:
        runs: runs directory.
        champions: checkpoints of champions.
        discarded: runs whose results are not kept for their own sake.
        unused_days: keep artifacts that were used within this many days.
    """
    records = {
        path: record
        for directory in status_file.directories(runs)
        for path in status_file.records_in(directory)
        if (record := status_file.read_file(path)) is not None
    }
    found = list(_artifacts(runs, records))
    by_path = {stored.path.resolve(): stored for stored in found}

    def need(path: str | Path, why: str) -> None:
        resolved = Path(path).resolve()
        for candidate in (resolved, *resolved.parents):
            if candidate in by_path:
                if why not in by_path[candidate].needed_for:
                    by_path[candidate].needed_for.append(why)
                return

    for path in champions:
        need(path, "the champion")
    for directory in status_file.directories(runs):
        record = status_file.newest(directory, records) or {"state": "", "nodes": {}}
        is_running = record["state"] in (status_file.RUNNING, status_file.LOST)
        if directory.name in discarded and not is_running:
            continue
        for name, node in record["nodes"].items():
            if is_running or node["state"] not in (status_file.FINISHED, status_file.CACHED):
                for path in (_artifact_path(directory, node), *node.get("inputs", ())):
                    need(path, f"`cloze resume {directory.name}` ({name})")
        for link in sorted(directory.iterdir()):
            if link.is_symlink():
                need(link, f"{directory.name}/{link.name}")
    for out, record in status_file.command_records(runs).items():
        for node in record["nodes"].values():
            is_gone = storage.is_local(node["artifact"]) and not Path(node["artifact"]).exists()
            if record["state"] in (status_file.RUNNING, status_file.LOST) or not is_gone:
                # records of earlier versions have the inputs in the config alone
                for path in node.get("inputs") or record["config"].get("inputs", {}).values():
                    need(path, out)
    now = time.time()
    for stored in found:
        if is_locked(str(stored.path)):
            stored.needed_for.append("a build in progress")
        elif now - stored.used < unused_days * DAY and not stored.needed_for:
            stored.needed_for.append("its age")
    _keep_parents(found)
    return sorted(found, key=lambda stored: -stored.size)


def _keep_parents(found: Iterable[StoredArtifact]) -> None:
    """Mark what kept artifacts were made from, at any distance; of equal ones, that of the run."""
    by_fingerprint: dict[str, list[StoredArtifact]] = {}
    for stored in found:
        by_fingerprint.setdefault(stored.fingerprint, []).append(stored)
    waiting = [stored for stored in found if stored.needed_for]
    while waiting:
        child = waiting.pop()
        for equal in filter(None, map(by_fingerprint.get, child.parents)):
            parent = max(equal, key=lambda stored: stored.run == child.run)
            if not parent.needed_for:
                waiting.append(parent)
            if child.name not in parent.needed_for:
                parent.needed_for.append(child.name)


def _artifacts(runs: Path, records: Mapping[Path, Mapping[str, Any]]) -> Iterator[StoredArtifact]:
    used = _last_uses(records)
    for directory in status_file.directories(runs):
        for path in sorted(directory.iterdir()):
            if path.is_symlink() or not path.is_dir():
                continue
            marks = [path / name for name in (MANIFEST, BUILDING) if (path / name).exists()]
            if not marks:
                continue  # not written by a stage
            written = marks[0].stat().st_mtime
            stored = StoredArtifact(
                path=path,
                run=directory.name,
                size=_freed(path),
                written=written,
                used=max(written, used.get(path.resolve(), 0.0)),
            )
            try:
                manifest = artifact.find_manifest(str(path))
                if manifest is not None:
                    stored.fingerprint = manifest.fingerprint
                    stored.parents = frozenset(
                        map(fingerprints.artifact_fingerprint_of, manifest.parents.values())
                    )
                    stored.needed_for += _foreign(path, manifest)
            except DataError as error:
                stored.needed_for.append(f"repair: {error}")
            yield stored


def _foreign(path: Path, manifest: artifact.Manifest) -> list[str]:
    """Return a reason to keep an artifact with files that its stage did not write."""
    known = {entry.path for entry in manifest.files}
    claim = artifact.read_claim(str(path)) or Claim()
    others = [name for name in artifact.data_files(str(path), claim.temporary) if name not in known]
    return [f"{others[0]}, a file of someone else's"] if others else []


def _artifact_path(directory: Path, node: Mapping[str, Any]) -> Path:
    """Return the artifact of a recorded node; the record may have a path of another directory."""
    return (directory / Path(node["artifact"]).name).resolve()


def _last_uses(records: Mapping[Path, Mapping[str, Any]]) -> dict[Path, float]:
    """Return the last start of a run that used each artifact, Unix seconds."""
    uses: dict[Path, float] = {}
    for file, record in records.items():
        for node in record.get("nodes", {}).values():
            if node.get("state") in (status_file.FINISHED, status_file.CACHED):
                path = _artifact_path(file.parent.parent, node)
                uses[path] = max(uses.get(path, 0.0), float(record["started"]))
    return uses


def _freed(path: Path) -> int:
    """Return the bytes on disk of files with a single name."""
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):
                status = os.lstat(os.path.join(directory, name))
                total += 512 * status.st_blocks if status.st_nlink == 1 else 0
    return total


def remove(stored: StoredArtifact) -> bool:
    """Remove an artifact and links to it; return False if a build has begun in it meanwhile.

    A removal that is killed leaves no manifest, so what is left is removed the next time.
    """
    try:
        with locked(str(stored.path)):
            if (stored.path / MANIFEST).exists():
                (stored.path / BUILDING).write_text("{}", encoding="utf-8")
                (stored.path / MANIFEST).unlink()
            shutil.rmtree(stored.path, ignore_errors=True)
    except UsageError:
        return False
    run = stored.path.parent
    for link in run.iterdir():
        is_broken = link.is_symlink() and not link.exists()
        if is_broken and not storage.has_scheme(storage.linked(str(link))):
            link.unlink(missing_ok=True)
    if {path.name for path in run.iterdir()} <= {status_file.DIRECTORY}:
        shutil.rmtree(run, ignore_errors=True)
    return not stored.path.exists()


def bytes_per_day(found: Iterable[StoredArtifact], days: float = 7.0) -> float:
    """Return the bytes that runs wrote per day, over the last days."""
    since = time.time() - days * DAY
    return sum(stored.size for stored in found if stored.written > since) / days
