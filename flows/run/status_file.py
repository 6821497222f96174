"""The status file of a run: one JSON record per start, for `cloze status`, `cancel` and `resume`.

    RUNS/NAME/_status/NUMBER-ID.json    one per start, the highest number is the newest; rewritten
                                        at every change of a node's state, once a second during
                                        progress, and every 30 s in any case: the run's lease
    RUNS/.commands/HASH/_status/…         of a command (`cloze.flows.graph.command`)
    RUNS/NAME/_lock                     lock of the run (`cloze.core.artifacts.lock`). A record of
                                        this host that says "running" without a held lock belongs
                                        to a zombie run.

`FIELDS` and `NODE_FIELDS` name what a record and each of its nodes have. Times are Unix seconds.
Secrets in `parameters` and `config` are redacted, and only the owner may read the file.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import Any

from cloze.core import storage
from cloze.core.artifacts import lock
from cloze.core.errors import DataError, describe_os_error, did_you_mean
from cloze.core.humanize import format_duration
from cloze.core.records import (
    NUMBER,
    NUMBER_OR_NONE,
    TEXT_OR_NONE,
    Fields,
    is_record,
    read_record,
)
from cloze.core.secrets import redact
from cloze.flows.graph import estimate
from cloze.flows.graph.command import command_directories, command_directory
from cloze.flows.graph.plan import PlannedNode

DIRECTORY = "_status"
RUNNING, FINISHED, FAILED = "running", estimate.FINISHED, "failed"
CANCELLED, CRASHED = "cancelled", "crashed"
# states of nodes, in addition to running, finished and failed
WAITING, CACHED, SKIPPED, STOPPED = ("waiting", "cached", "skipped", "stopped")
RETRYING = "retrying"  # failed, and waits for its next attempt; `why` names both
QUEUED = "queued"  # node that waits only for cores, GPUs or hosts; `why` names the reason
LOST = "lost"  # shown, never written: a run of another host whose lease has expired
UNREADABLE = "unreadable"  # shown, never written: the newest record is damaged
FIELDS: Fields = {
    "run": str, "state": str, "pid": int, "host": str, "started": NUMBER, "ended": NUMBER_OR_NONE,
    "error": TEXT_OR_NONE, "parameters": (dict, NoneType), "config": (dict, NoneType),
    "prefect": TEXT_OR_NONE, "begun": (list, NoneType), "nodes": dict,
}  # fmt: skip
NODE_FIELDS: Fields = {
    "stage": TEXT_OR_NONE, "section": TEXT_OR_NONE, "state": str, "why": TEXT_OR_NONE,
    "artifact": str, "inputs": (list, NoneType), "after": (list, NoneType),
    "started": NUMBER_OR_NONE, "ended": NUMBER_OR_NONE, "done": NUMBER_OR_NONE,
    "total": NUMBER_OR_NONE, "unit": TEXT_OR_NONE, "figures": (dict, NoneType),
    "seconds_left": NUMBER_OR_NONE, "error": TEXT_OR_NONE, "attempt": NUMBER_OR_NONE,
    "estimate": (dict, NoneType),
}  # fmt: skip
RETAINED_RECORDS = 50  # records per run
SECONDS = 1.0
RENEW_SECONDS = 30.0
LEASE_SECONDS = 600.0  # storage may stall for minutes, and clocks of hosts differ


class RunStatusFile:
    """Writer of the record of one start. Thread-safe."""

    def __init__(
        self,
        directory: Path,
        run: str,
        steps: Iterable[PlannedNode],
        parameters: Mapping[str, Any],
        config: Mapping[str, Any],
        estimates: Mapping[str, Mapping[str, Any]] | None = None,
        begun: Iterable[str] = (),
    ) -> None:
        """Write the first record, and delete all but the newest 50.

        Args:
            directory: directory of the run.
            run: name of the run.
            steps: the planned nodes.
            parameters: parameters of the run.
            config: values from which the run can be started again.
            estimates: cost estimates by node.
            begun: fingerprints of the nodes that earlier starts have begun.
        """
        self.id, number = uuid.uuid4().hex, max(map(_number, records_in(directory)), default=0) + 1
        self.path = directory / DIRECTORY / f"{number}-{self.id[:8]}.json"
        self.content: dict[str, Any] = {
            "id": self.id,
            "run": run,
            "state": RUNNING,
            **lock.process_identity(),
            "started": time.time(),
            "ended": None,
            "error": None,
            "parameters": redact(parameters),
            "config": redact(config),
            "prefect": None,
            "begun": sorted(begun),
            "nodes": {
                step.name: {
                    "stage": step.node.stage,
                    "section": step.node.section,
                    "state": WAITING,
                    "why": step.reason,
                    "artifact": storage.absolute(step.artifact),
                    "inputs": [storage.absolute(path) for path in step.inputs.values()],
                    "after": list(step.node.depends_on),
                    "estimate": None if step.cached else (estimates or {}).get(step.name),
                }
                for step in steps
            },
        }
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._written = 0.0
        self.write()
        threading.Thread(target=self._renew, name="cloze-status", daemon=True).start()
        for old in records_in(directory)[:-RETAINED_RECORDS]:
            old.unlink(missing_ok=True)

    def write(self) -> None:
        """Write the file atomically. A full disk is ignored, so that the run can continue."""
        with self._lock, suppress(OSError):
            self._written = time.monotonic()
            storage.write_bytes(str(self.path), json.dumps(self.content).encode(), private=True)

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            if self.path.exists():  # not after the run's directory was removed
                self.write()

    def update(self, **values: Any) -> None:
        """Set fields of the run."""
        self.content |= values
        self.write()

    def node(self, name: str, state: str, **values: Any) -> None:
        """Set the state of a node; `started` and `ended` follow from it."""
        node = self.content["nodes"][name]
        node |= {"state": state, **redact(values)}
        if state == RUNNING:  # an earlier attempt's progress is not this one's
            for key in ("ended", "error", "done", "total", "figures", "part", "begun"):
                node.pop(key, None)
            node["started"] = time.time()
        elif state not in (WAITING, QUEUED):
            node["ended"] = time.time()
            node.pop("seconds_left", None)
        if state != CACHED or time.monotonic() - self._written > SECONDS:
            self.write()

    def facts(self, name: str, **values: Any) -> None:
        """Set fields of a node and keep its state."""
        self.content["nodes"][name] |= values
        self.write()

    def progress(
        self, name: str, done: float, total: float | None, unit: str, figures: Mapping[str, Any]
    ) -> None:
        """Record the progress of a node; written at most once a second."""
        node = self.content["nodes"][name]
        if node["state"] == QUEUED:  # the scheduler has started it
            node["state"] = RUNNING
            node.pop("begun", None)
        step = figures.get("step")
        part = step if isinstance(step, str) else None  # the parts of a stage count separately
        if node.get("part") != part or "begun" not in node:
            node |= {"part": part, "begun": [time.time(), done]}
        values = {
            key: value for key, value in figures.items() if isinstance(value, (int, float, str))
        }
        node |= {
            "done": done,
            "total": total,
            "unit": unit,
            "figures": {**node.get("figures", {}), **values},
        }
        node["seconds_left"] = _seconds_left(node["begun"], done, total)
        if time.monotonic() - self._written > SECONDS:
            self.write()

    @property
    def cancel_requested(self) -> bool:
        """Report whether another process has asked to cancel this run."""
        return cancel_mark(self.path).exists()

    def end(self, state: str, error: str | None = None) -> None:
        """Write the final state of the run."""
        self._ended.set()
        _end_nodes(self.content, STOPPED)
        self.update(state=state, ended=time.time(), error=redact(error))
        with suppress(OSError):
            cancel_mark(self.path).unlink()


def _end_nodes(content: Mapping[str, Any], running: str) -> None:
    """Give started nodes the state `running`, and waiting nodes the state skipped."""
    for node in content["nodes"].values():
        if node["state"] in (RUNNING, WAITING, QUEUED, RETRYING):
            has_started = node["state"] == RUNNING or "started" in node
            node["state"] = running if has_started else SKIPPED


def _as_crashed(content: dict[str, Any], ended: float, path: Path) -> dict[str, Any]:
    """Return the record of a run whose process has ended, or whose host is lost."""
    _end_nodes(content, CRASHED)
    error = f"process {content['pid']} on {content['host']} is gone"
    try:
        with tempfile.TemporaryFile(dir=path.parent, buffering=0) as probe:
            probe.write(bytes(1 << 12))
    except OSError as cause:  # perhaps why the end is not in the record
        cause.filename = str(path.parent)
        error += "" if cause.errno == errno.EACCES else f"; {describe_os_error(cause, '')}"
    if content["host"] != socket.gethostname():
        silence = format_duration(max(0.0, time.time() - ended))
        error = f"no sign of life from {error.partition(' is gone')[0]} for {silence}: it is lost"
    return {**content, "state": CRASHED, "ended": ended, "error": error}


def _unreadable(path: Path, written: float) -> dict[str, Any]:
    """Return what is known of a damaged record: its process may be alive, its work unfinished."""
    error = f"{path} is damaged; start the run again, with its config, for a new record"
    times = {"started": written, "ended": written}
    return {"state": UNREADABLE, "error": error, "path": str(path), **times}


def _seconds_left(start: tuple[float, float], done: float, total: float | None) -> float | None:
    seconds, finished = time.time() - start[0], done - start[1]
    if total is None or finished <= 0 or seconds < 0:  # the clock was set back
        return None
    return round((total - done) * seconds / finished, 1)


def cancel_mark(path: Path) -> Path:
    return path.with_suffix(".cancel")


def records_in(directory: Path) -> list[Path]:
    """Return the record files of a run's directory, oldest first."""
    return sorted((directory / DIRECTORY).glob("*.json"), key=lambda path: (_number(path), path))


def _number(path: Path) -> int:
    """Return a record's number; a clock in its place may be set back, or differ between hosts."""
    digits = path.name.partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def read_file(path: Path) -> dict[str, Any] | None:
    """Return the record in a file; None if the file is damaged or missing."""
    with suppress(OSError):
        content = read_record(path.read_bytes(), FIELDS)
        if content is not None and all(
            is_record(node, NODE_FIELDS) for node in content["nodes"].values()
        ):
            return {"config": {}, "parameters": {}, **content}  # earlier versions lack them
    return None


def newest(
    directory: Path, known: Mapping[Path, dict[str, Any]] | None = None
) -> dict[str, Any] | None:
    """Return the newest record of the run in `directory`; None if there is none.

    The record gets the key `path`; a zombie run's record gets the state crashed. Instead of a
    damaged one, the one before it is returned with the state unreadable. `known`: records that were
    read already, by file.
    """
    damaged: tuple[Path, float] | None = None
    for path in reversed(records_in(directory)):
        with suppress(FileNotFoundError):  # the run's next start has removed it
            written = path.stat().st_mtime
            record = (known or {}).get(path) or read_file(path)
            if record is None:
                if os.access(path, os.R_OK):  # another account's record is its own to read
                    damaged = damaged or (path, written)
                continue
            if damaged is not None:
                return {**record, **_unreadable(*damaged)}
            if _is_dead(record, path):
                record = _as_crashed(record, written, path)
                record["state"] = CRASHED if record["host"] == socket.gethostname() else LOST
            return {**record, "path": str(path)}
    if damaged is None:
        return None
    missing = {"run": directory.name, "host": "", "pid": 0, "prefect": None}
    return {**missing, "nodes": {}, "config": {}, "parameters": {}, **_unreadable(*damaged)}


def all_records(runs: Path) -> dict[str, dict[str, Any]]:
    """Return the newest record of every run below `runs`, by run name."""
    newest_records = {path.name: newest(path) for path in directories(runs)}
    return {name: record for name, record in newest_records.items() if record is not None}


def last_estimate_error(directory: Path) -> dict[str, Any] | None:
    """Return the estimate error of the newest start that built something; None if there is none.

    See `cloze.flows.graph.estimate.estimate_error`.
    """
    starts = (read_file(path) or {} for path in reversed(records_in(directory)))
    return next(filter(None, map(estimate.estimate_error, starts)), None)


def command_records(runs: Path) -> dict[str, dict[str, Any]]:
    """Return the newest record of every command, by the artifact's directory."""
    records = [record for path in command_directories(runs) if (record := newest(path)) is not None]
    return {record["run"]: record for record in records}


def directory_of(runs: Path, name: str) -> Path:
    """Return the directory with the records of a run, or of a command (`name`: its artifact)."""
    run = runs / name
    return run if (run / DIRECTORY).is_dir() else command_directory(runs, name)


def read(runs: Path, name: str) -> dict[str, Any]:
    """Return the newest record of the run `name`.

    Raises:
        DataError: the run does not exist; the message suggests the nearest name.
    """
    record = newest(directory_of(runs, name))
    if record is None:
        names = [path.name for path in directories(runs)]
        hint = did_you_mean(name, names) if names else "there is none yet"
        raise DataError(f"no run {name!r} in {runs}; {hint}")
    return record


def mark_crashed(runs: Path, *, write: bool = True) -> list[str]:
    """Write the state crashed into the records of zombie runs, and return the runs' names.

    A zombie run is recorded as running, but no process holds its lock. Without `write`, only return
    the names.
    """
    names = []
    for directory in (*directories(runs), *command_directories(runs)):
        for path in records_in(directory):
            record = read_file(path)
            if record is None or not _is_dead(record, path):
                continue
            with suppress(OSError):
                crashed = _as_crashed(record, path.stat().st_mtime, path)
                if write:
                    storage.write_bytes(str(path), json.dumps(crashed).encode(), private=True)
                names.append(str(record["run"]))
    return names


def _is_dead(content: Mapping[str, Any], path: Path) -> bool:
    """Check whether a run that is recorded as running has lost its process.

    A file system may hide other hosts' locks, so another host's run counts as dead only once its
    lease has expired. If it lives after all, its next write says "running" again.
    """
    if content["state"] != RUNNING or lock.is_locked(str(path.parent.parent)):
        return False
    return (
        content["host"] == socket.gethostname()
        or time.time() - path.stat().st_mtime > LEASE_SECONDS
    )


def directories(runs: Path) -> Iterator[Path]:
    """Yield the directories of all runs that were ever started, sorted by name."""
    for path in sorted(runs.glob(f"*/{DIRECTORY}")):
        yield path.parent
