"""The spool: records for MLflow, one JSON object a line, appended locally without waiting.

    {"op": "start",   "run": id, "parent": id or null, "name": …, "tags": {…}, "attempt": from 1,
     "experiment": its name, "time": ms}
    {"op": "params",  "run": id, "params": {…}}
    {"op": "tags",    "run": id, "tags": {…}}
    {"op": "metrics", "run": id, "metrics": [[key, value, step, ms], …], "series": "system"
     or absent}
    {"op": "file",    "run": id, "path": …}
    {"op": "text",    "run": id, "name": …, "text": …}
    {"op": "dataset", "run": id, "name": …, "digest": …, "source": …, "profile": {…}, "context": …,
     "tags": {…}}
    {"op": "model",   "run": id, "checkpoint": {…}, "metrics": [[key, value, step, ms], …],
     "dataset": [name, digest] or null, "project": …}
    {"op": "end",     "run": id, "status": "FINISHED" | "FAILED" | "KILLED", "attempt": int,
     "time": ms}

The ids are Cloze's own. `cloze.flows.tracking.spool_sender` maps them to MLflow's runs, and keeps
its offset next to the spool, so each record is sent once, whenever the server answers. Secrets are
redacted before a record is written.

An flock on the spool's file marks its owners. The writer and its sender share the lock while they
live. Another process takes a spool only with an exclusive lock: then both owners are dead, and the
spool is an orphan. Where hosts do not see each other's locks, the name tells the host's boot, and a
spool that another boot has written or touched lately is alive.

A run may start again after its end: a training that was killed continues its run, see
`cloze.flows.tracking.spool_state`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from typing import IO, Any

from cloze.core import accounts
from cloze.core.artifacts import lock
from cloze.core.artifacts.lock import has_name
from cloze.core.errors import UsageError
from cloze.core.figures import is_finite
from cloze.core.processes import wait_until
from cloze.core.secrets import redact
from cloze.flows.tracking import spool_state
from cloze.flows.tracking.models import Checkpoint
from cloze.flows.tracking.spool_state import URI as URI
from cloze.flows.tracking.spool_state import count_dead_letters

DIRECTORY = ".tracking"  # of the spools, below the runs directory
SENDER_LOG = "sender.log"
OUR_ID = "cloze.run"  # tag: Cloze's id of a run
ATTEMPT = "cloze.attempt"  # tag: number of starts of the run
POLL_SECONDS = 0.05
FLUSH_SECONDS = 20.0  # how long the end of a run waits for the sender
TOUCH_SECONDS, LEASE_SECONDS = 20.0, 900.0  # a stall of the storage by minutes ends no lease
STOP_SECONDS = 2.0  # how long a stopped run waits: it may be killed soon

STORES = ("http", "https", "databricks", "databricks-uc", "uc", "sqlite", "postgresql", "mysql",
          "mssql")  # fmt: skip
FILES = ("", "file")  # which MLflow refuses unless a variable allows them
# a server without a scheme or a host, a file without its third slash
_MISTAKEN = re.compile(r"[\w.-]+:\d+(/|$)|https?:(?!//[^/:])|sqlite(\+\w+)?:(?!///)")

Point = tuple[str, float, int, int]  # key, value, step, milliseconds since 1970


def tracking_uri(runs: Path) -> str:
    """Return `$MLFLOW_TRACKING_URI`, or else the URI of a SQLite file in the runs directory.

    Raises UsageError: MLflow, which would refuse each record, has no store for the URI.
    """
    uri = os.environ.get(URI)
    if not uri:
        return f"sqlite:///{(runs / 'mlflow.db').resolve()}"
    scheme = (
        uri if uri in STORES else (re.match(r"([A-Za-z][\w.+-]+):", uri) or ("", ""))[1].lower()
    )
    takes_files = os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() in ("true", "1")
    if _MISTAKEN.match(uri) or (
        scheme.partition("+")[0] not in (*STORES, *FILES * takes_files)
        and scheme not in entry_points(group="mlflow.tracking_store").names
    ):
        raise UsageError(
            f"{URI}={redact(uri)} is no address of MLflow's; name a server, http://HOST:PORT, or a "
            f"file, sqlite:////PATH"
        )
    return uri


def now() -> int:
    return int(time.time() * 1000)


def boot() -> str:
    """Identify this boot of the machine; containers share it, as they share the locks."""
    return lock.boot_id()[:8]


class Spool:
    """Writer of records, which starts their sender.

    After its start no method raises because of the server, or because of the spool's own disk.
    """

    def __init__(self, directory: Path, uri: str, project: str | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.uri, self.project = directory, uri, accounts.project(project)
        self.path = directory / f"{now()}-{boot()}-{uuid.uuid4().hex[:8]}.jsonl"
        temporary = self.path.with_suffix(".new")  # hidden from other senders until it is locked
        self._stream = open(  # noqa: SIM115
            temporary, "a+", encoding="utf-8", buffering=1, opener=accounts.open_record
        )
        fcntl.flock(self._stream, fcntl.LOCK_SH)
        temporary.rename(self.path)
        self._writing = threading.Lock()
        # errors of the disk; what was to be written then may be missing
        self.failures: list[OSError] = []
        self._sender: subprocess.Popen[bytes] | None = None
        # run id -> how far its records have come
        self._known: dict[str, spool_state.RunCursor] = {}

    def _write(self, record: Mapping[str, Any]) -> None:
        # Metrics are keys and numbers, the most frequent records, and hold no secret.
        redacted = record if record["op"] == "metrics" else redact(record)
        line = json.dumps(redacted) + "\n"
        # the sampler of system metrics has its own thread
        with self._writing, self._continuing():
            self._stream.write(line)
        if self._sender is not None and record["op"] != "metrics":  # the few records
            self.start_sender()

    @contextlib.contextmanager
    def _continuing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # a disk that is full, read-only or gone
            self.failures.append(error)

    def start_sender(self) -> None:
        """Start the process that sends this spool and orphaned ones; again after a kill."""
        if self._sender is not None and (self._sender.poll() or 0) >= 0:
            return
        name = self.directory / SENDER_LOG
        with self._continuing(), open(name, "ab", opener=accounts.open_unlinked) as log:
            self._sender = subprocess.Popen(
                [sys.executable, "-m", "cloze.flows.tracking.spool_sender", str(self.path)],
                # no argument, which every user can read: the URI may contain a password
                env={**os.environ, URI: self.uri, accounts.PROJECT: self.project},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # Ctrl-C reaches the terminal's group: the sender must still send how the run ended.
                start_new_session=True,
            )

    def start_run(
        self,
        name: str,
        parent: str | None = None,
        tags: Mapping[str, str] | None = None,
        run: str | None = None,
    ) -> str:
        """Start a run, or resume `run`; return its id."""
        cursor = _known(self.directory, run) if run else spool_state.RunCursor()
        run = run or uuid.uuid4().hex
        cursor.attempt += 1
        with self._continuing():
            spool_state.write(self.directory, run, cursor)
        self._known[run] = cursor
        tags = {**(tags or {}), ATTEMPT: str(cursor.attempt)}
        details = {"tags": tags, "attempt": cursor.attempt, "time": now()}
        place = {"experiment": spool_state.experiment_name(self.project), "parent": parent}
        self._write({"op": "start", "run": run, "name": name, **place, **details})
        return run

    def params(self, run: str, values: Mapping[str, Any]) -> None:
        """Log nested config values as flat params, `section.key`."""
        self._write({"op": "params", "run": run, "params": dict(flatten(values))})

    def tags(self, run: str, values: Mapping[str, str]) -> None:
        self._write({"op": "tags", "run": run, "tags": dict(values)})

    def metrics(
        self,
        run: str,
        values: Mapping[str, Any],
        step: int = 0,
        time_ms: int | None = None,
        series: str | None = None,
    ) -> list[Point]:
        """Log the numbers among `values`, nested ones as `a.b`; return the logged points."""
        milliseconds = now() if time_ms is None else time_ms
        points: list[Point] = [
            (key, float(value), step, milliseconds)
            for key, value in flatten(values)
            if is_finite(value)
        ]
        numbers = ((key, value) for key, value in flatten(values) if isinstance(value, float))
        if odd := sorted(key for key, value in numbers if not is_finite(value)):
            self.tags(run, {f"cloze.not_finite.{key}": f"step {step}" for key in odd})
        if points:
            series_field = {"series": series} if series else {}
            self._write({"op": "metrics", "run": run, "metrics": points, **series_field})
        return points

    def line(self, run: str, values: Mapping[str, Any]) -> list[Point]:
        """Log an entry with `step` and `time` (Unix seconds), unless its step is recorded."""
        step, cursor = int(values["step"]), self._known[run]
        if step <= cursor.step:
            return []
        cursor.step = step
        seconds = values.get("time")
        numbers = {name: value for name, value in values.items() if name not in ("step", "time")}
        return self.metrics(run, numbers, step, None if seconds is None else int(seconds * 1000))

    def sample(self, run: str, values: Mapping[str, Any]) -> None:
        """Log a sample of system metrics; its step is its number."""
        self._known[run].sample += 1
        self.metrics(run, values, self._known[run].sample, series=spool_state.SAMPLES)

    def file(self, run: str, path: str) -> None:
        self._write({"op": "file", "run": run, "path": path})

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
    ) -> tuple[str, str]:
        """Log an input of the run, an artifact or a file; return MLflow's name and digest.

        The digest has at most 36 characters.
        """
        digest, tags = fingerprint[:36], {"cloze.fingerprint": fingerprint}
        described = {"name": name, "digest": digest, "source": source, "profile": profile or {}}
        self._write({"op": "dataset", "run": run, **described, "context": context, "tags": tags})
        return name, digest

    def model(
        self,
        run: str,
        checkpoint: Checkpoint,
        metrics: Sequence[Point] = (),
        dataset: tuple[str, str] | None = None,
    ) -> None:
        """Log a checkpoint as a model, with metrics of the run and their dataset."""
        record = {"op": "model", "run": run, "checkpoint": asdict(checkpoint), "dataset": dataset}
        self._write({**record, "metrics": list(metrics), "project": self.project})

    def end_run(self, run: str, status: str = "FINISHED") -> None:
        with self._continuing():
            spool_state.write(self.directory, run, self._known[run])
        self._write(_end(run, status, self._known[run].attempt))

    def close(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Wait until the sender has sent this spool; return whether it has. It sends on later."""
        empty = self._stream.tell() == 0
        with self._continuing():
            if empty and self._sender is None:
                self.path.unlink(missing_ok=True)
            self._stream.close()
        if (sender := self._sender) is None:
            return True
        assert sender.stdin is not None
        sender.stdin.close()  # signals the sender that no more records come
        wait_until(
            lambda: not self.path.exists() or sender.poll() is not None, timeout, POLL_SECONDS
        )
        return not self.path.exists()

    def refused(self) -> Counter[str]:
        """Return the number of records of this spool that MLflow rejected, by reason."""
        return count_dead_letters(self.directory, self.path.name)


def claim(path: Path, *, shared: bool) -> IO[bytes] | None:
    """Open and lock a spool; None: it is gone, or a live process owns it.

    `shared`: True: share the lock with the spool's writer, as its sender. False: exclusive.
    """
    try:
        stream = open(path, "r+b", opener=accounts.open_unlinked)  # noqa: SIM115
    except OSError as error:  # another user's spool is for that user to send
        if error.errno not in (errno.ENOENT, errno.EACCES, errno.ELOOP):
            raise
        return None
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(stream, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        if has_name(stream, str(path)):
            return stream
    stream.close()
    return None


def adopt(path: Path) -> Path | None:
    """Give a dead host's spool this boot's name, so that one host takes it; None: it is alive."""
    parts = path.stem.split("-")
    if len(parts) < 3 or parts[1] == boot():
        return path
    with contextlib.suppress(OSError):
        os.utime(path.parent)  # shows the file system's clock
        status = path.stat()
        if status.st_size and path.parent.stat().st_mtime - status.st_mtime > LEASE_SECONDS:
            os.utime(path)
            # Of several hosts that try, one renames it; the others find no file.
            adopted = path.rename(path.with_name(f"{parts[0]}-{boot()}-{parts[2]}.jsonl"))
            path.with_suffix(".sent").rename(adopted.with_suffix(".sent"))
            return adopted
    return None


def complete(stream: IO[bytes], directory: Path) -> None:
    """Append missing end records to a spool whose writer is dead, so that no run stays open."""
    stream.seek(0)
    content = stream.read()
    stream.seek(content.rfind(b"\n") + 1)  # over a torn last line
    stream.truncate()
    records = whole_records(content)
    attempts: dict[str, int] = {}  # of runs without an end, in start order
    for record in records:
        if record["op"] == "start":
            attempts[record["run"]] = record.get("attempt", 1)
        elif record["op"] == "end":
            attempts.pop(record["run"], None)
    # In start order a parent precedes its children; they end before it.
    for run, attempt in reversed(attempts.items()):
        cursor = spool_state.RunCursor()
        for record in records:
            cursor.see(run, record)
        spool_state.write(directory, run, cursor)
        stream.write(json.dumps(_end(run, "KILLED", attempt)).encode() + b"\n")
    stream.flush()


def _end(run: str, status: str, attempt: int) -> dict[str, Any]:
    return {"op": "end", "run": run, "status": status, "attempt": attempt, "time": now()}


def _known(directory: Path, run: str) -> spool_state.RunCursor:
    """Return a resumed run's cursor, from the stored one and from records still in spools."""
    cursor = spool_state.RunCursor()
    for path in directory.glob("*.jsonl"):
        # sent meanwhile; its cursor was stored before
        with contextlib.suppress(FileNotFoundError, PermissionError):
            content = path.read_bytes()
            for record in whole_records(content) if run.encode() in content else ():
                cursor.see(run, record)
    # read after the spools, because a spool is removed after its cursor was stored
    return spool_state.read(directory, run).with_all_of(cursor)


def whole_records(content: bytes) -> list[dict[str, Any]]:
    """Return the records of complete lines; damaged lines are skipped."""
    lines = content[: content.rfind(b"\n") + 1].split(b"\n")
    return [record for line in lines if (record := spool_state.read_line(line))]


def flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return nested mappings as pairs with `a.b` keys; lists stay values."""
    flat: list[tuple[str, Any]] = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat += flatten(value, f"{name}.")
        else:
            flat.append((name, value))
    return flat
