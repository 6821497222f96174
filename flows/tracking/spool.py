"""The spool: what MLflow shall know, one JSON object a line, appended locally and never waited for.

    {"op": "start",   "run": id, "parent": id or null, "name": …, "tags": {…}, "time": ms}
    {"op": "params",  "run": id, "params": {…}}
    {"op": "tags",    "run": id, "tags": {…}}
    {"op": "metrics", "run": id, "metrics": [[key, value, step, ms], …], "series": "system" or not there}
    {"op": "file",    "run": id, "path": …, "to": directory below the run's artifacts}
    {"op": "text",    "run": id, "name": …, "text": …}
    {"op": "dataset", "run": id, "name": …, "digest": …, "source": …, "profile": {…}, "context": …, "tags": {…}}
    {"op": "model",   "run": id, "checkpoint": {…}, "metrics": [[key, value, step, ms], …], "dataset": [name, digest] or null}
    {"op": "end",     "run": id, "status": "FINISHED" | "FAILED" | "KILLED", "time": ms}

Ids are ours. `flows.tracking.replay` turns them into MLflow's runs, and keeps the place it has reached beside the spool, so that records are
sent once each, whenever the server answers. Secrets are masked before a record is written.

A run may start again after its end: a training that was killed goes on in the run it began, see `flows.tracking.memory`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flows.tracking import memory
from flows.tracking.models import Checkpoint
from flows.tracking.refused import refused
from pipeline.core.secrets import masked

EXPERIMENT = "cloze"
URI = "MLFLOW_TRACKING_URI"  # of the environment
DIRECTORY = ".tracking"  # of the spools, below the runs
OUR_ID = "cloze.run"  # a tag: our id of a run
FLUSH_SECONDS = 20.0  # how long the end of a run waits for a server that answers
STOP_SECONDS = 2.0  # that a stopped run waits for it: who stopped it will kill it soon

Point = tuple[str, float, int, int]  # key, value, step, milliseconds since 1970


def tracking_uri(runs: Path) -> str:
    """`$MLFLOW_TRACKING_URI`, else a SQLite file beside the runs."""
    return os.environ.get(URI) or f"sqlite:///{(runs / 'mlflow.db').resolve()}"


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
        self._writing = threading.Lock()
        self._sender: subprocess.Popen[bytes] | None = None
        self._known: dict[str, memory.Memory] = {}  # our id -> how far its records have come

    def _write(self, record: Mapping[str, Any]) -> None:
        shown = record if record["op"] == "metrics" else masked(record)
        line = json.dumps(shown) + "\n"
        with self._writing:  # the sampler of the load has a thread of its own
            self._stream.write(line)

    def has_leftovers(self) -> bool:
        """Whether earlier runs left something to send."""
        return any(path != self.path for path in self.directory.glob("*.jsonl"))

    def start_sender(self) -> None:
        """Start the process that sends this spool and all that earlier runs left, unless it is started."""
        if self._sender is not None:
            return
        with (self.directory / "sender.log").open("ab") as log:
            self._sender = subprocess.Popen(
                [sys.executable, "-m", "flows.tracking.replay", str(self.directory), self.experiment],
                env={**os.environ, URI: self.uri},  # not an argument: it may hold a password, and every user sees those
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
        known = memory.read(self.directory, run)
        known.attempt += 1
        memory.write(self.directory, run, known)
        self._known[run] = known
        self._write({"op": "start", "run": run, "parent": parent, "name": name, "tags": dict(tags or {}), "time": now()})
        return run

    def attempt(self, run: str) -> int:
        """How often the run was started, this time included."""
        return self._known[run].attempt

    def params(self, run: str, values: Mapping[str, Any]) -> None:
        """Log nested config values as flat params, `section.key`."""
        self._write({"op": "params", "run": run, "params": dict(flatten(values))})

    def tags(self, run: str, values: Mapping[str, str]) -> None:
        self._write({"op": "tags", "run": run, "tags": dict(values)})

    def metrics(
        self, run: str, values: Mapping[str, Any], step: int = 0, time_ms: int | None = None, series: str | None = None
    ) -> list[Point]:
        """Log the numbers among `values`; nested ones as `a.b`. Returns what was logged."""
        stamp = now() if time_ms is None else time_ms
        found: list[Point] = [(key, float(value), step, stamp) for key, value in flatten(values) if is_number(value)]
        if found:
            mark = {"series": series} if series else {}
            self._write({"op": "metrics", "run": run, "metrics": found, **mark})
        return found

    def line(self, run: str, values: Mapping[str, Any]) -> list[Point]:
        """Log one line of a trainer, `step` and `time` (Unix seconds) among its values, unless its step is recorded."""
        step, known = int(values["step"]), self._known[run]
        if step <= known.step:
            return []
        known.step = step
        stamp = values.get("time")
        numbers = {name: value for name, value in values.items() if name not in ("step", "time")}
        return self.metrics(run, numbers, step, None if stamp is None else int(stamp * 1000))

    def sample(self, run: str, values: Mapping[str, Any]) -> None:
        """Log one sample of the system's load; its step is its number."""
        self._known[run].sample += 1
        self.metrics(run, values, self._known[run].sample, series=memory.SAMPLES)

    def file(self, run: str, path: str, to: str = "") -> None:
        """Log a file below the run's artifacts, in the directory `to`."""
        self._write({"op": "file", "run": run, "path": path, "to": to})

    def text(self, run: str, name: str, text: str) -> None:
        """Log a text as the run's artifact `name`."""
        self._write({"op": "text", "run": run, "name": name, "text": text})

    def dataset(
        self,
        run: str,
        *,
        name: str,
        fingerprint: str,
        source: str,
        context: str,
        profile: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> tuple[str, str]:
        """Log what a run reads: an artifact of data or a file. Returns MLflow's name and digest of it, of at most 36 characters."""
        record = {"name": name, "digest": fingerprint[:36], "source": source, "profile": dict(profile or {})}
        tags = {**(tags or {}), "cloze.fingerprint": fingerprint}
        self._write({"op": "dataset", "run": run, **record, "context": context, "tags": tags})
        return name, fingerprint[:36]

    def model(
        self, run: str, checkpoint: Checkpoint, metrics: Sequence[Point] = (), dataset: tuple[str, str] | None = None
    ) -> None:
        """Log a checkpoint as a model, with metrics that are logged in the run, and the dataset that they are of."""
        record = {"checkpoint": asdict(checkpoint), "metrics": list(metrics), "dataset": dataset}
        self._write({"op": "model", "run": run, **record})

    def end_run(self, run: str, status: str = "FINISHED") -> None:
        """End a run. One that is finished never goes on."""
        if status == "FINISHED":
            memory.forget(self.directory, run)
        else:
            memory.write(self.directory, run, self._known[run])
        self._write({"op": "end", "run": run, "status": status, "time": now()})

    def close(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Wait a little for the sender; whether everything has arrived. What has not is sent by it later, or with the next run."""
        empty = self._stream.tell() == 0
        self._stream.close()
        if self._sender is None:
            if empty:
                self.path.unlink()
            return True
        assert self._sender.stdin is not None
        self._sender.stdin.close()  # its sign that no more records come: it ends by itself
        try:
            return self._sender.wait(timeout) == 0
        except subprocess.TimeoutExpired:
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
                    memory.learn(directory, run, records)
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
