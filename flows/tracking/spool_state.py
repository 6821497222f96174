"""State next to the spools: MLflow client and experiment, run cursors, dead letters."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloze.core import accounts, storage
from cloze.core.accounts import open_record
from cloze.core.artifacts.lock import flock_or_say
from cloze.core.errors import ClozeError
from cloze.core.records import read_record
from cloze.flows.tracking import database

if TYPE_CHECKING:
    from mlflow import MlflowClient


# without this tag, MLflow's UI may show the experiment as traces of language models
KIND = "mlflow.experimentKind"
TRAINING = "custom_model_development"
URI = "MLFLOW_TRACKING_URI"  # environment variable
EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"  # environment variable
NOTE = "mlflow.note.content"
CONNECTIONS = 3  # to a database; by its usual ten MLflow says nothing for minutes
LOCK_SECONDS = 60.0  # for others' work under a lock, such as the upload of a model
DESCRIPTION = "A run of Cloze has a child run for each node, and a group for each matrix section."


def connect(uri: str) -> MlflowClient:
    """Return a client with short timeouts; callers retry.

    Raises ClozeError: MLflow's database cannot be opened.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("PGCONNECT_TIMEOUT", "10")
    from mlflow import MlflowClient
    from mlflow.store.db import utils

    utils.MAX_RETRY_COUNT = min(utils.MAX_RETRY_COUNT, CONNECTIONS)
    # hides a message for each table that it creates, and a traceback for each busy moment
    logging.getLogger("mlflow").setLevel(os.environ.get("MLFLOW_LOGGING_LEVEL", "CRITICAL"))
    path = database.path_of(uri)
    if path is None:
        return MlflowClient(tracking_uri=uri, registry_uri=uri)
    try:
        with exclusive(path.parent, f"{path.name}.lock"):  # MLflow itself makes tables without one
            database.make(path)
            client = MlflowClient(tracking_uri=uri, registry_uri=uri)
            client.search_registered_models(max_results=1)  # opens the registry's tables, too
            return client
    except ClozeError:
        raise
    except Exception as error:
        sentence = " ".join(str(error).split())[:200]
        raise ClozeError(
            f"MLflow's database {path} cannot be opened ({sentence}); `cloze doctor` mends it"
        ) from error


def experiment_name(project: str | None = None) -> str:
    """Return `$MLFLOW_EXPERIMENT_NAME`, or the project's name."""
    return os.environ.get(EXPERIMENT) or accounts.project(project)


def experiment_id(client: MlflowClient, uri: str, name: str | None = None) -> str:
    """Return an experiment's id; create or undelete it, and tag it as model training."""
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name := name or experiment_name())
    if experiment is None:
        try:
            location, tags = _artifacts(uri), {KIND: TRAINING, NOTE: DESCRIPTION}
            return str(client.create_experiment(name, location, tags))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another sender was faster
                raise
            return str(client.get_experiment_by_name(name).experiment_id)
    if experiment.lifecycle_stage == "deleted":  # MLflow would reject all records
        client.restore_experiment(experiment.experiment_id)
    if KIND not in experiment.tags:
        client.set_experiment_tag(experiment.experiment_id, KIND, TRAINING)
    return str(experiment.experiment_id)


def _artifacts(uri: str) -> str | None:
    """Return the artifacts' location next to a SQLite file; None: the server decides."""
    path = database.path_of(uri)
    return None if path is None else (path.resolve().parent / database.ARTIFACTS).as_uri()


@contextmanager
def exclusive(directory: Path, name: str) -> Iterator[None]:
    """Hold a lock among the processes of a spools' directory.

    `name`: file of the lock. Lookup and creation share a lock, so two processes create it once.

    Raises TimeoutError: another process holds it for longer than `LOCK_SECONDS`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / name, "a+", opener=accounts.open_unlinked) as lock:
        flock_or_say(LOCK_SECONDS, lock, fcntl.LOCK_EX, TimeoutError)
        yield


def read_line(line: bytes) -> dict[str, Any] | None:
    """Return the record in a line of a spool; None if it is damaged."""
    record = read_record(line, {"op": str, "run": str})
    if record is None or record["op"] != "metrics":
        return record
    points = record.get("metrics")
    is_whole = isinstance(points, list) and all(
        isinstance(point, list) and len(point) == 4 and isinstance(point[2], int)
        for point in points
    )
    return record if is_whole else None


# Cursors: how far the records of each MLflow run have come; a run may be resumed later.

DIRECTORY = "runs"  # below the directory of the spools
CURSORS_LOCK = "cursors.lock"
NONE = -1
SAMPLES = "system"  # series whose steps count samples; all other series count training steps
MODE = "?workflowType=machine_learning"  # else MLflow shows the page for language models


@dataclass(slots=True)
class RunCursor:
    """Cursor of a run."""

    step: int = NONE  # highest recorded step; -1: none
    sample: int = NONE  # highest recorded sample; -1: none
    attempt: int = 0
    experiment: str = ""  # MLflow's id of the experiment; empty: MLflow does not know the run
    mlflow: str = ""

    def see(self, run: str, record: Mapping[str, Any]) -> None:
        """Update the cursor with a record, if it is of this run."""
        if record.get("run") != run:
            return
        if record["op"] == "start":
            self.attempt = max(self.attempt, record.get("attempt", 1))
        if record["op"] == "metrics":
            highest = max((step for _, _, step, _ in record["metrics"]), default=NONE)
            # Steps of samples are counts, which would hide the training's lower steps.
            if record.get("series") == SAMPLES:
                self.sample = max(self.sample, highest)
            else:
                self.step = max(self.step, highest)

    def with_all_of(self, other: RunCursor) -> RunCursor:
        """Return the maximum of both cursors, with this one's ids."""
        step, sample = max(self.step, other.step), max(self.sample, other.sample)
        return replace(self, step=step, sample=sample, attempt=max(self.attempt, other.attempt))


def read(directory: Path, run: str) -> RunCursor:
    """Return the cursor of `run` (Cloze's id); empty: the run is unknown."""
    try:
        return RunCursor(**json.loads(_file(directory, run).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return RunCursor()


def write(directory: Path, run: str, memory: RunCursor) -> None:
    """Store how far a run's records have come; concurrent writers are merged."""
    _change(directory, run, lambda known: known.with_all_of(memory))


def write_ids(directory: Path, run: str, experiment: str, mlflow: str) -> None:
    _change(directory, run, lambda known: replace(known, experiment=experiment, mlflow=mlflow))


def page(directory: Path, run: str, server: str) -> str | None:
    """Return the URL of a run's page on an MLflow server; None: MLflow does not know the run.

    Args:
        run: Cloze's id; for a node, the build id.
        server: `http://HOST:PORT`.
    """
    cursor = read(directory, run)
    if not cursor.mlflow:
        return None
    return f"{server.rstrip('/')}/#/experiments/{cursor.experiment}/runs/{cursor.mlflow}{MODE}"


def home(directory: Path, server: str) -> str:
    """Return the URL of Cloze's list of runs on an MLflow server; arguments as `page`."""
    cursors = (read(directory, path.stem) for path in (directory / DIRECTORY).glob("*.json"))
    experiment = next((cursor.experiment for cursor in cursors if cursor.experiment), "")
    place = f"experiments/{experiment}/runs" if experiment else "experiments"
    return f"{server.rstrip('/')}/#/{place}{MODE}"


def _change(directory: Path, run: str, change: Callable[[RunCursor], RunCursor]) -> None:
    with exclusive(directory, CURSORS_LOCK):
        stored = read(directory, run)
        updated = change(stored)
        if updated != stored:
            storage.write_bytes(str(_file(directory, run)), json.dumps(asdict(updated)).encode())


def _file(directory: Path, run: str) -> Path:
    return directory / DIRECTORY / f"{run.replace('/', '_')}.json"


# Dead letters: records that MLflow rejects, kept with the reason, so that the others arrive. `cloze
# doctor` lists them.

FILE = Path("refused") / "records.jsonl"  # below the directory of the spools
REFUSED_LOCK = "refused.lock"


def add_dead_letter(spool: Path, record: Mapping[str, Any], reason: str) -> None:
    """Append a record that MLflow will never accept."""
    path = spool.parent / FILE
    path.parent.mkdir(exist_ok=True)
    entry = {"time": time.time(), "spool": spool.name, "reason": reason, "record": record}
    with (
        exclusive(spool.parent, REFUSED_LOCK),
        open(path, "a", encoding="utf-8", opener=open_record) as stream,
    ):
        stream.write(json.dumps(entry) + "\n")


def count_dead_letters(directory: Path, spool: str | None = None) -> Counter[str]:
    """Return the number of rejected records by reason, of one spool or of all."""
    return Counter(
        entry["reason"] for entry in _entries(directory) if spool in (None, entry.get("spool"))
    )


def requeue(directory: Path) -> int:
    """Move the dead letters into a new spool for the next sender; return their number."""
    with exclusive(directory, REFUSED_LOCK):
        records = [
            json.dumps(entry["record"]) + "\n"
            for entry in _entries(directory)
            if "op" in entry["record"]
        ]
        if records:
            path = directory / f"{int(time.time() * 1000)}-again.jsonl"
            temporary = path.with_suffix(".new")  # no sender takes an incomplete file
            with open(temporary, "w", encoding="utf-8", opener=open_record) as stream:
                stream.write("".join(records))
            temporary.rename(path)
        # After the rename: a kill between the two sends them twice, and MLflow stores them once.
        (directory / FILE).unlink(missing_ok=True)
    return len(records)


def _entries(directory: Path) -> Iterator[dict[str, Any]]:
    path = directory / FILE
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        entry = read_record(line, {"reason": str, "record": dict})
        if entry is not None:
            yield entry


if __name__ == "__main__":
    try:
        connect(sys.argv[1])
    except Exception as error:
        print((str(error).strip().splitlines() or [type(error).__name__])[0])
        sys.exit(database.HELD if isinstance(error.__cause__, TimeoutError) else 1)
