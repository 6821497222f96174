"""`python -m flows.tracking.replay SPOOL_DIRECTORY EXPERIMENT`: send spooled records to `$MLFLOW_TRACKING_URI`, once each.

It sends every spool in the directory, oldest first, and follows the newest until standard input ends. Beside
each spool lies `NAME.sent`: the offset reached and the MLflow runs made. A record that was sent but not yet
noted when this process died is sent again with the same key, step, time and value, which MLflow stores once;
a run carries our id as a tag and is looked up before it is made, and so are models and versions.

A server that is down is waited for. A record that MLflow refuses (a metric's name, a run that was deleted), or whose file cannot be stored
although MLflow answers, is set aside with its reason in `refused/`, where `cloze doctor` finds it, and the rest arrives.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.tracking.client import connect
from flows.tracking.refused import set_aside
from flows.tracking.registry import MODEL
from flows.tracking.sending import METRICS_A_REQUEST, Sender, stamp
from flows.tracking.spool import URI, open_runs, whole_records
from pipeline.core import storage
from pipeline.core.errors import DataError
from pipeline.core.secrets import masked

if TYPE_CHECKING:
    from mlflow import MlflowClient

REFUSALS = frozenset(  # MLflow's error codes that stay as they are however often one asks
    {
        "BAD_REQUEST",
        "INVALID_PARAMETER_VALUE",
        "INVALID_STATE",
        "MALFORMED_REQUEST",
        "RESOURCE_ALREADY_EXISTS",
        "RESOURCE_DOES_NOT_EXIST",
    }
)
STORING = ("file", "text", "model")  # records that need more than MLflow's database
TRIES = 3  # of such a record, while MLflow answers
RETRY_SECONDS = 2.0
POLL_SECONDS = 0.5


class Replay:
    """Sends one spool. `client` is mlflow.MlflowClient."""

    def __init__(self, spool: Path, client: MlflowClient, experiment: str, uri: str = "") -> None:
        self.spool = spool
        self.notes = spool.with_suffix(".sent")
        state = json.loads(self.notes.read_text()) if self.notes.exists() else {}
        self.offset: int = state.get("offset", 0)
        model = os.environ.get("CLOZE_MODEL") or MODEL
        self._sender = Sender(client, uri or client.tracking_uri, experiment, spool.parent, model)
        self._sender.runs.update(state.get("runs", {}))
        self._failed = 0  # how often the record at the offset could not be stored

    def send(self) -> bool:
        """Send what has come since; whether there was anything."""
        begun = self.offset
        with self.spool.open("rb") as stream:
            stream.seek(self.offset)
            content = stream.read()
        whole = content[: content.rfind(b"\n") + 1]
        for size, record in _joined(whole.splitlines(keepends=True)):
            if record is None:
                self._refuse({"line": whole[:size].decode(errors="replace")}, "the line is damaged")
            else:
                self._send_or_set_aside(record)
            whole = whole[size:]
            self.offset += size
            storage.write_bytes(str(self.notes), json.dumps({"offset": self.offset, "runs": self._sender.runs}).encode())
        return self.offset > begun

    def forget_if_complete(self) -> None:
        """Remove a spool whose runs have all ended: MLflow has it all. Its notes go last."""
        if not open_runs(whole_records(self.spool.read_bytes())) and self.offset == self.spool.stat().st_size:
            self.spool.unlink()
            self.notes.unlink(missing_ok=True)

    def _send_or_set_aside(self, record: dict[str, Any]) -> None:
        """Send a record. If it is refused, send what it holds one by one, and set aside what is refused of that.

        Raises:
            Exception: the server cannot be reached, or is at fault itself: to be tried again.
        """
        from mlflow.exceptions import MlflowException

        try:
            self._sender.send(record)
        except KeyError:
            self._refuse(record, "MLflow has no run for it")
        except DataError as error:
            self._refuse(record, _first_line(error))
        except Exception as error:
            refused = isinstance(error, MlflowException) and error.error_code in REFUSALS
            parts = _one_by_one(record)
            if refused and len(parts) > 1:
                for part in parts:
                    self._send_or_set_aside(part)
                return
            if not refused and record["op"] in STORING and self._sender.answers():
                self._failed += 1
                refused = self._failed >= TRIES
            if not refused:
                raise
            self._refuse(record, _first_line(error))
        self._failed = 0

    def _refuse(self, record: Mapping[str, Any], reason: str) -> None:
        set_aside(self.spool.parent, record, reason)
        print(f"{stamp()} refused: {reason}", flush=True)


def _joined(lines: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """The records of whole lines with their bytes; those of one run's metrics that follow each other as one, up to MLflow's limit.

    A damaged line is None.
    """
    held: dict[str, Any] | None = None
    size = 0
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if held is not None:
            follows = record is not None and record["op"] == "metrics" and record["run"] == held["run"]
            if follows and len(held["metrics"]) + len(record["metrics"]) <= METRICS_A_REQUEST:
                held["metrics"] += record["metrics"]
                size += len(line)
                continue
            yield size, held
            held = None
        if record is not None and record["op"] == "metrics":
            held, size = record, len(line)
        else:
            yield len(line), record
    if held is not None:
        yield size, held


def _one_by_one(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The record as one a metric, parameter or tag."""
    if record["op"] == "metrics":
        return [{**record, "metrics": [metric]} for metric in record["metrics"]]
    if record["op"] in ("params", "tags"):
        return [{**record, record["op"]: {name: value}} for name, value in record[record["op"]].items()]
    return [dict(record)]


def _first_line(error: Exception) -> str:
    return str(masked((str(error).strip().splitlines() or [type(error).__name__])[0]))


def follow(directory: Path, uri: str, experiment: str, ended: threading.Event) -> int:
    """Send all spools until `ended` is set and nothing is left; 0 if all arrived."""
    client = connect(uri)
    replays: dict[Path, Replay] = {}
    while True:
        last = ended.is_set()  # asked before reading: what was written before the end is read below
        try:
            for spool in sorted(directory.glob("*.jsonl")):
                replay = replays.setdefault(spool, Replay(spool, client, experiment, uri))
                replay.send()
            if last:
                for replay in replays.values():
                    replay.forget_if_complete()
                return 0
        except Exception as error:  # a server that is down, slow or wrong costs records time, never the run
            print(f"{stamp()} {type(error).__name__}: {masked(str(error))}", flush=True)
            if last:
                return 1
            ended.wait(RETRY_SECONDS)
        ended.wait(POLL_SECONDS)


def main() -> int:
    directory, uri, experiment = Path(sys.argv[1]), os.environ[URI], sys.argv[2]
    with (directory / "sender.lock").open("w") as lock:
        ended = threading.Event()

        def wait_for_end() -> None:
            sys.stdin.read()
            ended.set()

        threading.Thread(target=wait_for_end, daemon=True).start()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one sender a directory: the next waits for its turn
        except OSError:
            return 1
        return follow(directory, uri, experiment, ended)


if __name__ == "__main__":
    sys.exit(main())
