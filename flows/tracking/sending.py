"""How each record becomes calls of MLflow that may be made again: whatever is sent twice is there once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.tracking import links, models
from flows.tracking.client import experiment_id
from flows.tracking.models import Checkpoint
from flows.tracking.spool import OUR_ID
from pipeline.core.errors import DataError

if TYPE_CHECKING:
    from mlflow import MlflowClient

PARENT_TAG = "mlflow.parentRunId"
METRICS_A_REQUEST = 1000  # MLflow's own limits
PARAMS_A_REQUEST = 100
PARAM_CHARACTERS = 6000
TAG_CHARACTERS = 8000


class Sender:
    """Sends records of one spool.

    Attributes:
        runs: our id -> MLflow's.
    """

    def __init__(self, client: MlflowClient, uri: str, experiment: str, directory: Path, model: str) -> None:
        """Args:
        directory: the spools'.
        model: the name that pretrained checkpoints are registered under.
        """
        self.client, self.uri, self.experiment, self.directory, self.model = client, uri, experiment, directory, model
        self.runs: dict[str, str] = {}
        self._operations: dict[str, Callable[[str, Mapping[str, Any]], None]] = {
            "metrics": self._metrics,
            "params": self._params,
            "tags": self._tags,
            "file": self._file,
            "text": self._text,
            "dataset": self._dataset,
            "model": self._model,
            "end": self._end,
        }

    def send(self, record: Mapping[str, Any]) -> None:
        """Send one record.

        Raises:
            KeyError: MLflow has no run for it, or the record is of no known kind.
            DataError: what it names cannot be recorded.
            MlflowException: MLflow refuses it, or cannot be reached.
        """
        if record["op"] == "start":
            self._start(record)
        else:
            self._operations[record["op"]](self._run(record["run"]), record)

    def _experiment(self) -> str:
        return experiment_id(self.client, self.experiment, self.uri)

    def _run(self, ours: str) -> str:
        """MLflow's id of a run that was started, by this spool or an earlier one."""
        if ours not in self.runs:
            found = self.client.search_runs([self._experiment()], f"tags.`{OUR_ID}` = '{ours}'", max_results=1)
            if not found:
                raise KeyError(ours)
            self.runs[ours] = str(found[0].info.run_id)
        return self.runs[ours]

    def _start(self, record: Mapping[str, Any]) -> None:
        ours, experiment = record["run"], self._experiment()
        tags = {name: str(value)[:TAG_CHARACTERS] for name, value in record["tags"].items()} | {OUR_ID: ours}
        if record["parent"]:
            with suppress(KeyError):  # it was deleted: its children still count
                tags[PARENT_TAG] = self._run(record["parent"])
        found = self.client.search_runs([experiment], f"tags.`{OUR_ID}` = '{ours}'", max_results=1)
        if found:  # it goes on, below the run that goes on with it
            known = str(found[0].info.run_id)
            self.client.update_run(known, status="RUNNING")
            for key, value in tags.items():
                self.client.set_tag(known, key, value)
        else:
            made = self.client.create_run(experiment, start_time=record["time"], tags=tags, run_name=record["name"])
            known = str(made.info.run_id)
        self.runs[ours] = known
        links.remember(self.directory, ours, experiment, known)

    def _metrics(self, run: str, record: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(key, value, stamp, step) for key, value, step, stamp in record["metrics"]]
        for first in range(0, len(metrics), METRICS_A_REQUEST):
            self.client.log_batch(run, metrics=metrics[first : first + METRICS_A_REQUEST])

    def _params(self, run: str, record: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        seen = self.client.get_run(run).data.params  # params are immutable: only what is not there yet
        new = [(k, str(v)[:PARAM_CHARACTERS]) for k, v in record["params"].items() if k not in seen]
        for first in range(0, len(new), PARAMS_A_REQUEST):
            self.client.log_batch(run, params=[Param(k, v) for k, v in new[first : first + PARAMS_A_REQUEST]])

    def _tags(self, run: str, record: Mapping[str, Any]) -> None:
        from mlflow.entities import RunTag

        self.client.log_batch(run, tags=[RunTag(name, str(value)[:TAG_CHARACTERS]) for name, value in record["tags"].items()])

    def _file(self, run: str, record: Mapping[str, Any]) -> None:
        place = record.get("to") or None
        _check_inside(place)
        if Path(record["path"]).is_file():
            self.client.log_artifact(run, record["path"], place)

    def _text(self, run: str, record: Mapping[str, Any]) -> None:
        _check_inside(record["name"])
        self.client.log_text(run, record["text"], record["name"])

    def _dataset(self, run: str, record: Mapping[str, Any]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag
        from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

        dataset = Dataset(
            name=record["name"],
            digest=record["digest"],
            source_type="local",
            source=json.dumps({"uri": record["source"]}),
            profile=json.dumps(record["profile"]),
        )
        tags = {**record["tags"], MLFLOW_DATASET_CONTEXT: record["context"]}
        self.client.log_inputs(run, [DatasetInput(dataset, [InputTag(name, str(value)) for name, value in tags.items()])])

    def _model(self, run: str, record: Mapping[str, Any]) -> None:
        """The checkpoint as a LoggedModel of the run, its metrics linked to it and to their dataset, and registered."""
        from mlflow.entities import Metric

        wanted = Checkpoint(**record["checkpoint"])
        with models.one_at_a_time(self.directory):
            model = models.logged_model(self.client, self._experiment(), wanted, run)
            name, digest = record["dataset"] or (None, None)
            linked = [
                Metric(key, value, stamp, step, model_id=model.model_id, dataset_name=name, dataset_digest=digest)
                for key, value, step, stamp in record["metrics"]
            ]
            if linked:
                self.client.log_batch(run, metrics=linked)
            models.version(self.client, models.registered_name(self.model, wanted.config()), model, wanted.all_tags)

    def _end(self, run: str, record: Mapping[str, Any]) -> None:
        self.client.set_terminated(run, status=record["status"], end_time=record["time"])

    def answers(self) -> bool:
        """Whether MLflow is there at all."""
        try:
            self._experiment()
        except Exception:
            return False
        return True


def _check_inside(name: str | None) -> None:
    if name is not None and not models.is_inside(name):
        raise DataError(f"{name!r} leads out of the run's artifacts; use a relative name without `..`")


def stamp() -> str:
    """The time, for the sender's log."""
    return time.strftime("%H:%M:%S")
