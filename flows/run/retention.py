"""Artifacts of a runs directory: what each one is needed for, and removal of the others.

An artifact is kept if a run in progress builds or reads it, if a failed or cancelled run continues
it, if it has a champion's checkpoint, if it is the current result of a named run (its link points
at it), or if a kept artifact was made from it. All others are results of earlier configs, finished
or not.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloze.core import storage
from cloze.core.accounts import open_unlinked
from cloze.core.artifacts import artifact, fingerprints
from cloze.core.artifacts.artifact import BUILDING, MANIFEST, Claim
from cloze.core.artifacts.lock import flock_or_say, is_locked, locked
from cloze.core.errors import DataError, UsageError, shell_command
from cloze.core.identity import RECORDED
from cloze.core.links import linked
from cloze.core.stages.worker import JOB, LOGS, Job
from cloze.flows.graph.command import command_directories, run_folders
from cloze.flows.run import status_file
from cloze.flows.run.targets import node_name

DAY = 24 * 3600.0
STARTS, NAMES = ".starts.lock", ".names.lock"
STARTS_SECONDS = 600.0  # for a start that plans a large run, or a removal on a network disk
ASIDE = ".removed-"  # prefix of an artifact that is being removed


@dataclass(slots=True, kw_only=True)
class StoredArtifact:
    """An artifact, finished or not, below the runs directory."""

    path: Path
    run: str  # name of the run whose directory contains it
    size: int  # bytes on disk that removing it frees; files with other hard links do not count
    written: float  # Unix seconds of the end of the build, or of its begin
    used: float  # Unix seconds of the last start of a run that made or reused it
    fingerprint: str = ""
    parents: frozenset[str] = frozenset()
    # reasons to keep it; empty: it can be removed
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
    sizes: bool = True,
) -> list[StoredArtifact]:
    """Return all artifacts of all runs with what they are needed for, largest first.

    Args:
        discarded: runs whose results are not kept for their own sake.
        unused_days: keep artifacts that were used within this many days.
        sizes: measure the artifacts, which reads every directory.
    """
    records = {
        path: record
        for directory in status_file.directories(runs)
        for path in status_file.records_in(directory)
        if (record := status_file.read_file(path)) is not None
    }
    found = list(_artifacts(runs, records, sizes))
    by_path = {stored.path.resolve(): stored for stored in found}

    def need(path: str | Path, why: str) -> None:
        resolved = Path(path).resolve()
        for candidate in (resolved, *resolved.parents):
            if candidate in by_path:
                if why not in by_path[candidate].needed_for:
                    by_path[candidate].needed_for.append(why)
                return

    unlinked: list[StoredArtifact] = []
    for path in champions:
        need(path, "the champion")
    for directory in status_file.directories(runs):
        record = status_file.newest(directory, records) or {"state": "", "nodes": {}}
        is_running = record["state"] in (status_file.RUNNING, status_file.LOST)
        run = status_file.name_of(runs, directory)
        is_closed = "path" in record and not os.access(record["path"], os.R_OK)  # it may be running
        if run in discarded and not (is_running or is_closed):
            continue
        if record["state"] == status_file.UNREADABLE:  # nobody knows what it has begun
            for each in [path for path in by_path if path.parent == directory.resolve()]:
                need(each, "repair: the run's record is not readable")
        for name, node in record["nodes"].items():
            if is_running or node["state"] not in (status_file.FINISHED, status_file.CACHED):
                for path in (_artifact_path(directory, node), *node.get("inputs", ())):
                    need(path, f"{shell_command('resume', run)} ({name})")
        links = sorted(link for link in directory.iterdir() if link.is_symlink())
        for link in links:
            need(link, f"{run}/{link.name}")
        unlinked += _unlinked(directory, found, {link.name for link in links})
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
    for stored in unlinked:
        stored.needed_for = stored.needed_for or [f"{stored.run}/{node_name(stored.path)}"]
    _keep_parents(found)
    return sorted(found, key=lambda stored: -stored.size)


def _unlinked(
    directory: Path, found: Iterable[StoredArtifact], links: Collection[str]
) -> list[StoredArtifact]:
    """Return the finished artifact used last of each node without a link; copies may lose links."""
    own = (stored for stored in found if stored.path.parent == directory and stored.fingerprint)
    last = {node_name(stored.path): stored for stored in sorted(own, key=lambda one: one.used)}
    return [stored for node, stored in last.items() if node not in links]


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


def _artifacts(
    runs: Path, records: Mapping[Path, Mapping[str, Any]], sizes: bool
) -> Iterator[StoredArtifact]:
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
                run=status_file.name_of(runs, directory),
                size=_freed(path) if sizes else 0,
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


@contextmanager
def starts(runs: Path, file: str = STARTS, *, shared: bool = True) -> Iterator[None]:
    """Hold the lock of starts: shared from a run's plan to its record, exclusive for a removal.

    `file`: `NAMES`, exclusive from the check of a run's name to the lock of its directory.
    """
    with ExitStack() as stack:
        with suppress(OSError):  # a file system may have no locks
            handle = stack.enter_context(open(runs / file, "a+b", opener=open_unlinked))
            flock_or_say(STARTS_SECONDS, handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield


def unneeded_sources(runs: Path, *, remove: bool = False) -> list[Path]:
    """Return the copies of the source that no run, command or unfinished artifact names.

    None counts as unneeded while a record or job is damaged, or another account's own to read.
    """
    with starts(runs, shared=not remove):  # a start writes its record after its copy
        directories = [*status_file.directories(runs), *command_directories(runs)]
        starts_of = filter(None, map(status_file.records_in, directories))
        records = [status_file.read_file(files[-1]) for files in starts_of]
        if None in records:
            return []
        names = {Path(record.get("source") or "").name for record in records if record}
        folders = run_folders(runs)
        for job in (job for each in folders for job in each.glob(f"*/*/{LOGS}/{JOB}")):
            # it may outlive the start that made it
            if not (job.parents[1] / MANIFEST).exists():
                if not os.access(job, os.R_OK):  # it has a secret of another account
                    return []
                with suppress(DataError, OSError):
                    names.add(Path(Job.read(str(job)).source).name)
        unneeded = [path for path in (runs / RECORDED).glob("*") if path.name not in names]
        for path in unneeded if remove else ():
            shutil.rmtree(path, ignore_errors=True)
    return unneeded


def remove(
    runs: Path, unneeded: Collection[StoredArtifact], champions: Iterable[str] = (), **how: Any
) -> list[StoredArtifact]:
    """Remove what is still not needed, and links to it; return what was removed.

    `unneeded`: what a survey found some time ago; `how`: the options of `survey`.
    """
    with starts(runs, shared=False):  # a run that starts meanwhile reads what it has planned
        found = survey(runs, champions, **how, sizes=False)
        free = {stored.path for stored in found if not stored.needed_for}
        asides = {
            stored.path: aside
            for stored in unneeded
            if stored.path in free and (aside := _set_aside(stored.path))
        }
    for aside in asides.values():
        shutil.rmtree(aside, ignore_errors=True)
    for run in {path.parent for path in asides}:
        for link in run.iterdir():
            is_broken = link.is_symlink() and not link.exists()
            if is_broken and not storage.has_scheme(linked(str(link))):
                link.unlink(missing_ok=True)
        if {path.name for path in run.iterdir()} <= {status_file.DIRECTORY}:
            shutil.rmtree(run, ignore_errors=True)
            if run.parent != runs:
                with suppress(OSError):  # other runs are there
                    run.parent.rmdir()
    return [each for each in unneeded if each.path in asides and not asides[each.path].exists()]


def _set_aside(path: Path) -> Path | None:
    """Rename an artifact, so that it is gone at once; return None if a build has begun in it.

    A removal that is killed leaves no manifest, so what is left is removed the next time.
    """
    aside = path.with_name(f"{ASIDE}{time.time_ns()}")
    with suppress(UsageError, OSError), locked(str(path)):
        if (path / MANIFEST).exists():
            storage.write_bytes(str(path / BUILDING), b"{}")
            (path / MANIFEST).unlink()
        return path.rename(aside)
    return None
