"""`python -m flows.tracking.replay SPOOL_DIRECTORY URI EXPERIMENT`: send spooled records to MLflow, once each.

It sends every spool in the directory, oldest first, and follows the newest until standard input ends. Beside
each spool lies `NAME.sent`: the offset reached and the MLflow runs made. A record that was sent but not yet
noted when this process died is sent again with the same key, step, time and value, which MLflow stores once;
a run carries our id as a tag and is looked up before it is made. A run that is started again is open again.

A server that is down is waited for. A record that MLflow refuses (a metric's name, a run that was deleted) is set aside with its
reason in `refused/`, where `cloze doctor` finds it, and the rest arrives.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.tracking.refused import set_aside
from flows.tracking.spool import open_runs, whole_records
from pipeline.core import storage

if TYPE_CHECKING:
    from mlflow import MlflowClient

OUR_ID = "cloze.run"
PARENT_TAG = "mlflow.parentRunId"
METRICS_A_REQUEST = 1000  # MLflow's own limits
PARAMS_A_REQUEST = 100
PARAM_CHARACTERS = 6000
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
RETRY_SECONDS = 2.0
POLL_SECONDS = 0.5


class Replay:
    """Sends one spool. `client` is mlflow.MlflowClient."""

    def __init__(self, spool: Path, client: MlflowClient, experiment: str) -> None:
        self.spool, self.client, self.experiment = spool, client, experiment
        self.notes = spool.with_suffix(".sent")
        state = json.loads(self.notes.read_text()) if self.notes.exists() else {}
        self.offset: int = state.get("offset", 0)
        self.runs: dict[str, str] = state.get("runs", {})  # our id -> MLflow's

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
            storage.write_bytes(str(self.notes), json.dumps({"offset": self.offset, "runs": self.runs}).encode())
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
            self._send_one(record)
        except MlflowException as error:
            if error.error_code not in REFUSALS:
                raise
            parts = _one_by_one(record)
            if len(parts) > 1:
                for part in parts:
                    self._send_or_set_aside(part)
            else:
                self._refuse(record, _first_line(error))
        except KeyError:
            self._refuse(record, "MLflow has no run for it")

    def _refuse(self, record: Mapping[str, Any], reason: str) -> None:
        set_aside(self.spool.parent, record, reason)
        print(f"{time.strftime('%H:%M:%S')} refused: {reason}", flush=True)

    def _send_one(self, record: dict[str, Any]) -> None:
        from mlflow.entities import Metric, Param

        operation = record["op"]
        if operation == "start":
            self.runs[record["run"]] = self._run(record)
            return
        run = self.runs[record["run"]]
        if operation == "metrics":
            metrics = [Metric(key, value, stamp, step) for key, value, step, stamp in record["metrics"]]
            for first in range(0, len(metrics), METRICS_A_REQUEST):
                self.client.log_batch(run, metrics=metrics[first : first + METRICS_A_REQUEST])
        elif operation == "params":
            seen = self.client.get_run(run).data.params  # params are immutable: only what is not there yet
            new = [(k, str(v)[:PARAM_CHARACTERS]) for k, v in record["params"].items() if k not in seen]
            for first in range(0, len(new), PARAMS_A_REQUEST):
                self.client.log_batch(run, params=[Param(k, v) for k, v in new[first : first + PARAMS_A_REQUEST]])
        elif operation == "file":
            if Path(record["path"]).exists():
                self.client.log_artifact(run, record["path"])
        elif operation == "end":
            self.client.set_terminated(run, status=record["status"], end_time=record["time"])

    def _run(self, record: dict[str, Any]) -> str:
        experiment = self.client.get_experiment_by_name(self.experiment)
        if experiment is not None and experiment.lifecycle_stage == "deleted":  # in the UI: nothing could be recorded any more
            self.client.restore_experiment(experiment.experiment_id)
        experiment_id = experiment.experiment_id if experiment else self.client.create_experiment(self.experiment)
        found = self.client.search_runs([experiment_id], f"tags.`{OUR_ID}` = '{record['run']}'", max_results=1)
        tags = {**record["tags"], OUR_ID: record["run"]}
        if record["parent"] in self.runs:
            tags[PARENT_TAG] = self.runs[record["parent"]]
        if found:  # it goes on, below the run that goes on with it
            known = str(found[0].info.run_id)
            self.client.update_run(known, status="RUNNING")
            for key, value in tags.items():
                self.client.set_tag(known, key, value)
            return known
        run = self.client.create_run(experiment_id, start_time=record["time"], tags=tags, run_name=record["name"])
        return str(run.info.run_id)


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
    """The record as one a metric or parameter."""
    if record["op"] == "metrics":
        return [{**record, "metrics": [metric]} for metric in record["metrics"]]
    if record["op"] == "params":
        return [{**record, "params": {name: value}} for name, value in record["params"].items()]
    return [dict(record)]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def follow(directory: Path, uri: str, experiment: str, ended: threading.Event) -> int:
    """Send all spools until `ended` is set and nothing is left; 0 if all arrived."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    replays: dict[Path, Replay] = {}
    while True:
        last = ended.is_set()  # asked before reading: what was written before the end is read below
        try:
            for spool in sorted(directory.glob("*.jsonl")):
                replay = replays.setdefault(spool, Replay(spool, client, experiment))
                replay.send()
            if last:
                for replay in replays.values():
                    replay.forget_if_complete()
                return 0
        except Exception as error:  # a server that is down, slow or wrong costs records time, never the run
            print(f"{time.strftime('%H:%M:%S')} {type(error).__name__}: {error}", flush=True)
            if last:
                return 1
            ended.wait(RETRY_SECONDS)
        ended.wait(POLL_SECONDS)


def main() -> int:
    directory, uri, experiment = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
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
