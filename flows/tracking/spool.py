"""The spool: what MLflow shall know, one JSON object a line, appended locally and never waited for.

    {"op": "start",   "run": id, "parent": id or null, "name": …, "tags": {…}, "time": ms}
    {"op": "params",  "run": id, "params": {…}}
    {"op": "metrics", "run": id, "metrics": [[key, value, step, ms], …]}
    {"op": "file",    "run": id, "path": …}
    {"op": "end",     "run": id, "status": "FINISHED" | "FAILED" | "KILLED", "time": ms}

Ids are ours. `flows.tracking.replay` turns them into MLflow's runs, and keeps the place it has reached beside
the spool, so that records are sent once each, whenever the server answers.

A run may start again after its end: a training that was killed goes on in the run it began. `steps/ID` holds the highest step
that spools before this one have of it, so that a step that is computed a second time is recorded once.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flows.tracking.refused import refused
from pipeline.core import storage

EXPERIMENT = "cloze"
OUR_ID = "cloze.run"  # a tag: our id of a run
STEPS = "steps"
NO_STEP = -1
FLUSH_SECONDS = 20.0  # how long the end of a run waits for a server that answers


def tracking_uri(runs: Path) -> str:
    """`$MLFLOW_TRACKING_URI`, else a SQLite file beside the runs."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(runs / 'mlflow.db').resolve()}"


def now() -> int:
    return int(time.time() * 1000)


class Spool:
    """Appends to the spool and keeps a process that sends it. Nothing here raises for a server's sake."""

    def __init__(self, directory: Path, uri: str, experiment: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.uri, self.experiment = directory, uri, experiment
        self._begun = time.time()
        end_killed_runs(directory)
        self.path = directory / f"{now()}-{uuid.uuid4().hex[:8]}.jsonl"
        self._stream = self.path.open("a", encoding="utf-8", buffering=1)
        fcntl.flock(self._stream, fcntl.LOCK_EX)  # says that this spool's writer lives
        self._sender: subprocess.Popen[bytes] | None = None
        self._steps: dict[str, int] = {}  # our id -> the highest step recorded

    def _write(self, record: Mapping[str, Any]) -> None:
        self._stream.write(json.dumps(record) + "\n")

    def start_sender(self) -> None:
        """Start the process that sends this spool and all that earlier runs left."""
        with (self.directory / "sender.log").open("ab") as log:
            self._sender = subprocess.Popen(
                [sys.executable, "-m", "flows.tracking.replay", str(self.directory), self.uri, self.experiment],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_run(
        self, name: str, parent: str | None = None, tags: Mapping[str, str] | None = None, run: str | None = None
    ) -> str:
        """Start a run, or go on with `run`; returns our id of it."""
        run = run or uuid.uuid4().hex
        self._steps[run] = read_step(self.directory, run)
        self._write({"op": "start", "run": run, "parent": parent, "name": name, "tags": dict(tags or {}), "time": now()})
        return run

    def params(self, run: str, values: Mapping[str, Any]) -> None:
        """Log nested config values as flat params, `section.key`."""
        self._write({"op": "params", "run": run, "params": dict(flatten(values))})

    def metrics(self, run: str, values: Mapping[str, Any], step: int = 0, time_ms: int | None = None) -> None:
        """Log the numbers among `values`; nested ones as `a.b`."""
        stamp = now() if time_ms is None else time_ms
        found = [[key, float(value), step, stamp] for key, value in flatten(values) if is_number(value)]
        if found:
            self._write({"op": "metrics", "run": run, "metrics": found})

    def line(self, run: str, values: Mapping[str, Any]) -> None:
        """Log one line of a trainer, `step` and `time` (Unix seconds) among its values, unless its step is recorded."""
        step = int(values["step"])
        if step <= self._steps[run]:
            return
        stamp = values.get("time")
        numbers = {name: value for name, value in values.items() if name not in ("step", "time")}
        self.metrics(run, numbers, step, None if stamp is None else int(stamp * 1000))
        self._steps[run] = step

    def file(self, run: str, path: str) -> None:
        self._write({"op": "file", "run": run, "path": path})

    def end_run(self, run: str, status: str = "FINISHED") -> None:
        """End a run. One that is finished never goes on, so its step is forgotten."""
        if status == "FINISHED":
            (self.directory / STEPS / run).unlink(missing_ok=True)
        else:
            write_step(self.directory, run, self._steps[run])
        self._write({"op": "end", "run": run, "status": status, "time": now()})

    def close(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Wait a little for the sender; whether everything has arrived. What has not is sent with the next run."""
        self._stream.close()
        if self._sender is None:
            return True
        assert self._sender.stdin is not None
        self._sender.stdin.close()  # its sign that no more records come
        try:
            return self._sender.wait(timeout) == 0
        except subprocess.TimeoutExpired:
            self._sender.kill()
            self._sender.wait()
            return False

    def refused(self) -> Counter[str]:
        """The records that MLflow has refused since this spool was opened, by reason."""
        return refused(self.directory, self._begun)


def end_killed_runs(directory: Path) -> None:
    """Write the missing ends into the spools of processes that were killed, so that no run stays open for ever."""
    for path in directory.glob("*.jsonl"):
        with path.open("r+", encoding="utf-8") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue  # its writer lives
            content = stream.read().encode()
            records = whole_records(content)
            begun = open_runs(records)
            if begun:
                stream.seek(content.rfind(b"\n") + 1)  # over the torn last line, if there is one
                stream.truncate()
                for run in reversed(begun):
                    write_step(directory, run, _highest_step(records, run))
                    stream.write(json.dumps({"op": "end", "run": run, "status": "KILLED", "time": now()}) + "\n")


def whole_records(content: bytes) -> list[dict[str, Any]]:
    """The records among a spool's lines; a damaged line tells of none."""
    records = []
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        with contextlib.suppress(ValueError):
            records.append(json.loads(line))
    return records


def open_runs(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """The runs that were started and not ended since, in the order of their start."""
    begun: dict[str, None] = {}
    for record in records:
        if record["op"] == "start":
            begun[record["run"]] = None
        elif record["op"] == "end":
            begun.pop(record["run"], None)
    return list(begun)


def read_step(directory: Path, run: str) -> int:
    """The highest step of the run that any spool has recorded; -1: none."""
    try:
        return int((directory / STEPS / run).read_text())
    except (OSError, ValueError):
        return NO_STEP


def write_step(directory: Path, run: str, step: int) -> None:
    """Remember the highest step of a run that may go on in a later spool."""
    if step > read_step(directory, run):
        storage.write_bytes(str(directory / STEPS / run), str(step).encode())


def _highest_step(records: Iterable[Mapping[str, Any]], run: str) -> int:
    mine = (record for record in records if record["op"] == "metrics" and record["run"] == run)
    return max((step for record in mine for _, _, step, _ in record["metrics"]), default=NO_STEP)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested mappings to `a.b` keys; lists stay values."""
    flat: list[tuple[str, Any]] = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat += flatten(value, f"{name}.")
        else:
            flat.append((name, value))
    return flat
