"""The record of a run: what `cloze status`, `cancel`, `resume` and the pages know of it, while it runs and afterwards.

    RUNS/NAME/_runs/STARTED-ID.json    one a start of the run, the newest last; written anew at every change of a node's state, and once a
                                       second while something moves
    RUNS/NAME/_lock                    the run directory's lease (`pipeline.core.lock`): a record that says "running" whose lease nobody
                                       holds is of a run that was killed

    {"id", "run", "state", "pid", "host", "started", "ended", "error", "parameters", "config", "prefect",
     "nodes": {name: {"stage", "section", "state", "why", "artifact", "after", "started", "ended", "done", "total", "unit", "figures",
                      "seconds_left", "error", "attempt", "estimate"}}}

Times are Unix seconds.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flows.graph.plan import Step
from pipeline.core import storage
from pipeline.core.errors import DataError, did_you_mean
from pipeline.core.lock import is_held

DIRECTORY = "_runs"
RUNNING, FINISHED, FAILED, CANCELLED, CRASHED = "running", "finished", "failed", "cancelled", "crashed"
WAITING, CACHED, SKIPPED, STOPPED = "waiting", "cached", "skipped", "stopped"  # of nodes, beside the first three
KEPT = 50  # records a run
SECONDS = 1.0


class RunRecord:
    """Writes the record of one start. Any thread may call it."""

    def __init__(
        self,
        directory: Path,
        run: str,
        steps: Iterable[Step],
        parameters: Mapping[str, Any],
        config: Mapping[str, Any],
        estimates: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Args:
        directory: the run's.
        config: what the run can be made from again.
        estimates: what each node is expected to take.
        """
        now = time.time()
        self.id = uuid.uuid4().hex
        self.path = directory / DIRECTORY / f"{int(now * 1000)}-{self.id[:8]}.json"
        self.content: dict[str, Any] = {
            "id": self.id,
            "run": run,
            "state": RUNNING,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": now,
            "ended": None,
            "error": None,
            "parameters": dict(parameters),
            "config": dict(config),
            "prefect": None,
            "nodes": {
                step.name: {
                    "stage": step.node.stage,
                    "section": step.node.section,
                    "state": WAITING,
                    "why": step.why,
                    "artifact": step.artifact,
                    "after": list(step.node.after),
                    "estimate": None if step.cached else (estimates or {}).get(step.name),
                }
                for step in steps
            },
        }
        self._lock = threading.Lock()
        self._written = 0.0
        self.write()
        for old in records_in(directory)[:-KEPT]:
            old.unlink(missing_ok=True)

    def write(self) -> None:
        """Put it on the disk, atomically. A full disk is no reason to end a run that could go on."""
        with self._lock, suppress(OSError):
            self._written = time.monotonic()
            storage.write_bytes(str(self.path), json.dumps(self.content).encode())

    def update(self, **values: Any) -> None:
        """Facts about the whole run."""
        self.content |= values
        self.write()

    def node(self, name: str, state: str, **values: Any) -> None:
        """A node's state has changed; `started` and `ended` follow from it."""
        node = self.content["nodes"][name]
        node |= {"state": state, **values}
        if state == RUNNING:
            node["started"] = time.time()
            node.pop("ended", None)
        elif state != WAITING:
            node["ended"] = time.time()
            node.pop("seconds_left", None)
        if state != CACHED or time.monotonic() - self._written > SECONDS:
            self.write()

    def facts(self, name: str, **values: Any) -> None:
        """More is known of a node, whose state is as it was."""
        self.content["nodes"][name] |= values
        self.write()

    def progress(self, name: str, done: float, total: float | None, unit: str, figures: Mapping[str, Any]) -> None:
        """How far a node has come."""
        node = self.content["nodes"][name]
        step = figures.get("step")
        part = step if isinstance(step, str) else None  # of a stage in several parts, each has its own count
        if node.get("part") != part or "begun" not in node:
            node |= {"part": part, "begun": [time.time(), done]}
        told = {key: value for key, value in figures.items() if isinstance(value, (int, float, str))}
        node |= {"done": done, "total": total, "unit": unit, "figures": {**node.get("figures", {}), **told}}
        node["seconds_left"] = _left(node["begun"], done, total)
        if time.monotonic() - self._written > SECONDS:
            self.write()

    @property
    def cancel_asked(self) -> bool:
        """Whether whoever ends this run's process means to cancel it."""
        return _cancel_mark(self.path).exists()

    def end(self, state: str, error: str | None = None) -> None:
        """The run is over."""
        for node in self.content["nodes"].values():
            if node["state"] in (RUNNING, WAITING):
                node["state"] = STOPPED if node["state"] == RUNNING else SKIPPED
        self.update(state=state, ended=time.time(), error=error)
        _cancel_mark(self.path).unlink(missing_ok=True)


def _left(begun: tuple[float, float], done: float, total: float | None) -> float | None:
    since, first = begun
    if total is None or done <= first:
        return None
    return round((total - done) * (time.time() - since) / (done - first), 1)


def ask_to_cancel(record: Mapping[str, Any]) -> None:
    """Tell the process of a run that it is not killed, but cancelled. Args: record: as it was read."""
    _cancel_mark(Path(record["path"])).touch()


def _cancel_mark(path: Path) -> Path:
    return path.with_suffix(".cancel")


def records_in(directory: Path) -> list[Path]:
    """The records of a run's directory, oldest first."""
    return sorted((directory / DIRECTORY).glob("*.json"))


def read_file(path: Path) -> dict[str, Any] | None:
    """A record as it stands on the disk; None: it is damaged or gone."""
    with suppress(OSError, ValueError):
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return content
    return None


def newest(directory: Path) -> dict[str, Any] | None:
    """The record of the last start of the run in `directory`; None: it was never started, or its record is damaged."""
    for path in reversed(records_in(directory)):
        content = read_file(path)
        if content is not None:
            if content["state"] == RUNNING and not is_held(str(directory)):
                content["state"] = CRASHED
            return {**content, "path": str(path)}
    return None


def all_records(runs: Path) -> dict[str, dict[str, Any]]:
    """The newest record of every run below `runs`, by the run's name."""
    found = {path.name: newest(path) for path in directories(runs)}
    return {name: record for name, record in found.items() if record is not None}


def read(runs: Path, name: str) -> dict[str, Any]:
    """The newest record of the run.

    Raises:
        DataError: there is no such run; the nearest name is told.
    """
    record = newest(runs / name)
    if record is None:
        names = [path.name for path in directories(runs)]
        hint = did_you_mean(name, names) if names else "there is none yet"
        raise DataError(f"no run {name!r} in {runs}; {hint}")
    return record


def dead(runs: Path) -> list[str]:
    """The names of runs whose newest record says that they go on, and whose lease nobody holds."""
    found = []
    for directory in directories(runs):
        for path in records_in(directory)[-1:]:
            content = read_file(path)
            if content is not None and content["state"] == RUNNING and not is_held(str(directory)):
                found.append(directory.name)
    return found


def mark_dead(runs: Path) -> list[str]:
    """Write into the records of runs that were killed that they are no more; their names."""
    marked = []
    for directory in directories(runs):
        for path in records_in(directory):
            content = read_file(path)
            if content is None or content["state"] != RUNNING or is_held(str(directory)):
                continue
            with suppress(OSError):
                for node in content["nodes"].values():
                    if node["state"] in (RUNNING, WAITING):
                        node["state"] = CRASHED if node["state"] == RUNNING else SKIPPED
                content |= {
                    "state": CRASHED,
                    "ended": time.time(),
                    "error": f"process {content['pid']} on {content['host']} is gone",
                }
                storage.write_bytes(str(path), json.dumps(content).encode())
                marked.append(directory.name)
    return marked


def directories(runs: Path) -> Iterator[Path]:
    """The directories of the runs that were ever started, by name."""
    for path in sorted(runs.glob(f"*/{DIRECTORY}")):
        yield path.parent
