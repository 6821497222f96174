"""Calls to MLflow: the kinds of records, and the registered model. Repeated calls change nothing.

The records' sender retries them. Calls for the registered model, its versions and the champion's
alias wait for MLflow.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloze.core import storage
from cloze.core.errors import ClozeError, DataError, UsageError
from cloze.core.secrets import redact
from cloze.flows.tracking import database, models, spool_state
from cloze.flows.tracking.models import Checkpoint
from cloze.flows.tracking.spool import ATTEMPT, DIRECTORY, OUR_ID, Point, now, tracking_uri
from cloze.flows.tracking.spool_state import KIND, TRAINING, connect, exclusive, experiment_id

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion

LOCK = "runs.lock"
NOT_A_MODEL = "cloze.not_a_model"  # tag of a run whose checkpoint MLflow cannot load: the reason
PARENT_TAG = "mlflow.parentRunId"
METRICS_A_REQUEST = 1000  # limits of MLflow
PARAMS_A_REQUEST = 100
PARAM_CHARACTERS = 6000
TAG_CHARACTERS = 8000


class MlflowWriter:
    """Writer of records to MLflow."""

    def __init__(self, uri: str, directory: Path) -> None:
        self.uri, self.directory = uri, directory
        self._path = database.path_of(uri)
        self._opened = database.file_identity(self._path)

    @functools.cached_property
    def client(self) -> MlflowClient:
        """The client. While MLflow cannot be opened, each use tries again."""
        client = connect(self.uri)
        self._opened = self._opened or database.file_identity(self._path)
        return client

    @property
    def is_replaced(self) -> bool:
        """Whether the database is gone or another: this process cannot open the new one."""
        return self._opened is not None and self._opened != database.file_identity(self._path)

    def send(self, record: Mapping[str, Any]) -> None:
        """Send one record.

        Raises:
            KeyError: MLflow has no run for the record, or the record's kind is unknown.
            DataError: the record refers to something that cannot be recorded.
            MlflowException: MLflow rejects the record, or cannot be reached.
        """
        if record["op"] == "start":
            self._start(record)
        else:
            OPERATIONS[record["op"]](self, self._run(record["run"]), record)

    def _experiment(self, name: str | None = None) -> str:
        return experiment_id(self.client, self.uri, name)

    def _run(self, our_id: str) -> str:
        """Return MLflow's id of a run that this spool or an earlier one started."""
        run_id = spool_state.read(self.directory, our_id).mlflow
        if not run_id:
            raise KeyError(our_id)
        return run_id

    def _start(self, record: Mapping[str, Any]) -> None:
        cloze_id = record["run"]
        with exclusive(self.directory, LOCK):  # two senders may start the same run
            # the run's own project, not that of this sender: it may be another account's
            experiment = self._experiment(record.get("experiment"))
            tags = {**_cut(record["tags"]), OUR_ID: cloze_id}
            if record["parent"]:
                with suppress(KeyError):  # the parent was deleted: the child still counts
                    tags[PARENT_TAG] = self._run(record["parent"])
            known = _known_run(self.client, experiment, cloze_id)
            mlflow_run = known or self.client.create_run(
                experiment, start_time=record["time"], tags=tags, run_name=record["name"]
            )
            run_id = str(mlflow_run.info.run_id)
            # the run is resumed, maybe under a new parent
            if known and not _is_overtaken(known, record):
                self.client.update_run(run_id, status="RUNNING")
                for key, value in tags.items():
                    self.client.set_tag(run_id, key, value)
        spool_state.write_ids(self.directory, cloze_id, experiment, run_id)

    def _metrics(self, run: str, record: Mapping[str, Any]) -> None:
        _log_metrics(self.client, run, record["metrics"])

    def _params(self, run: str, record: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        existing = self.client.get_run(run).data.params  # params are immutable: send only new ones
        new = {name: value for name, value in record["params"].items() if name not in existing}
        params = [Param(name, str(value)[:PARAM_CHARACTERS]) for name, value in new.items()]
        for batch in _batched(params, PARAMS_A_REQUEST):
            self.client.log_batch(run, params=batch)

    def _tags(self, run: str, record: Mapping[str, Any]) -> None:
        from mlflow.entities import RunTag

        self.client.log_batch(run, tags=[RunTag(*tag) for tag in _cut(record["tags"]).items()])

    def _file(self, run: str, record: Mapping[str, Any]) -> None:
        path = record["path"]
        if storage.exists(path) and storage.is_file(path):
            with models.local_copy(path) as local:
                self.client.log_artifact(run, local)

    def _text(self, run: str, record: Mapping[str, Any]) -> None:
        if not models.is_inside(record["name"]):
            raise DataError(
                f"{record['name']!r} leads out of the run's artifacts; use a relative name without"
                " `..`"
            )
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
        self.client.log_inputs(
            run,
            [DatasetInput(dataset, [InputTag(name, str(value)) for name, value in tags.items()])],
        )

    def _model(self, run: str, record: Mapping[str, Any]) -> None:
        """Record the checkpoint as a LoggedModel with metrics and dataset, and register it."""
        checkpoint = Checkpoint(**record["checkpoint"])
        reason = models.why_not_served(checkpoint.config())
        if reason is not None:
            self.client.set_tag(run, NOT_A_MODEL, reason)
            return
        with exclusive(self.directory, models.LOCK):
            experiment = spool_state.read(self.directory, record["run"]).experiment
            model = models.logged_model(self.client, experiment, checkpoint, run)
            name, digest = record["dataset"] or (None, None)
            about = {"model_id": model.model_id, "dataset_name": name, "dataset_digest": digest}
            _log_metrics(self.client, run, record["metrics"], about)
            registered = models.registered_name(checkpoint.config(), record.get("project"))
            models.version(self.client, registered, model, checkpoint.all_tags)

    def _end(self, run: str, record: Mapping[str, Any]) -> None:
        with exclusive(self.directory, LOCK):
            if not _is_overtaken(self.client.get_run(run), record):
                self.client.set_terminated(run, status=record["status"], end_time=record["time"])

    def is_writable(self) -> bool:
        """Return whether MLflow accepts records now, by setting a tag that is set already."""
        try:
            self.client.set_experiment_tag(self._experiment(), KIND, TRAINING)
        except Exception:
            return False
        return True


OPERATIONS: dict[str, Callable[[MlflowWriter, str, Mapping[str, Any]], None]] = {
    "metrics": MlflowWriter._metrics,
    "params": MlflowWriter._params,
    "tags": MlflowWriter._tags,
    "file": MlflowWriter._file,
    "text": MlflowWriter._text,
    "dataset": MlflowWriter._dataset,
    "model": MlflowWriter._model,
    "end": MlflowWriter._end,
}


def _cut(tags: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value)[:TAG_CHARACTERS] for name, value in tags.items()}


def _known_run(client: MlflowClient, experiment: str, our_id: str) -> Run | None:
    """Return MLflow's run with Cloze's id."""
    runs = client.search_runs([experiment], f"tags.`{OUR_ID}` = '{our_id}'", max_results=1)
    return runs[0] if runs else None


def _batched(values: list[Any], size: int) -> Iterator[list[Any]]:
    return (values[first : first + size] for first in range(0, len(values), size))


def _log_metrics(
    client: MlflowClient,
    run: str,
    points: Sequence[Point],
    about: Mapping[str, str | None] | None = None,
) -> None:
    """Log points to a run; `about`: ids of the model and the dataset that they are of."""
    from mlflow.entities import Metric

    metrics = [
        Metric(key, value, milliseconds, step, **(about or {}))
        for key, value, step, milliseconds in points
    ]
    for batch in _batched(metrics, METRICS_A_REQUEST):
        client.log_batch(run, metrics=batch)


def _is_overtaken(run: Run, record: Mapping[str, Any]) -> bool:
    """Return whether the run has a later attempt than the record; another spool may be faster."""
    return int(run.data.tags.get(ATTEMPT, 0)) > int(record.get("attempt", 1))


# The registered model. The journal of nightly runs decides who is champion; the alias
# `models:/cloze@champion` follows.

CHAMPION = "champion"


class Registry:
    """A registered model. Every call raises ClozeError if MLflow does not answer."""

    def __init__(self, runs: Path, uri: str | None = None, project: str | None = None) -> None:
        """Connect to MLflow at `uri`, by default where runs are recorded.

        `project`: see `accounts.project`; None: the environment's.
        """
        self.name, self.uri = models.registered_name(None, project), uri or tracking_uri(runs)
        self._experiment = spool_state.experiment_name(project)
        self._directory = runs / DIRECTORY
        self._client = connect(self.uri)

    def register(
        self,
        checkpoint: str,
        *,
        fingerprint: str,
        metrics: Mapping[str, float] | None = None,
        tags: Mapping[str, str] | None = None,
        step: int = 0,
        build: str | None = None,
    ) -> int:
        """Return the version with that fingerprint.

        The version is created from the checkpoint if needed. An existing version gets the tags; the
        metrics are logged in both cases.

        Args:
            metrics: metrics by name (letters, digits and `_-./: `).
            step: training step of the checkpoint and the metrics.
            build: build id of the training; its MLflow run gets the metrics, too.

        Raises:
            DataError: the checkpoint is missing or incomplete.
            UsageError: MLflow rejects a name or a value.
        """
        with self._asking(), exclusive(self._directory, models.LOCK):
            version = self._find(fingerprint)
            experiment = experiment_id(self._client, self.uri, self._experiment)
            if version is None:
                new_checkpoint = models.Checkpoint(
                    path=checkpoint,
                    fingerprint=fingerprint,
                    build=build or "",
                    step=step,
                    tags=dict(tags or {}),
                )
                run = self._run(experiment, build) or self._new_run(experiment, new_checkpoint)
                model = models.logged_model(self._client, experiment, new_checkpoint, run)
                version = models.version(self._client, self.name, model, new_checkpoint.all_tags)
            else:
                for name, value in (tags or {}).items():
                    self._client.set_model_version_tag(self.name, version.version, name, value)
            points = [(name, float(value), step, now()) for name, value in (metrics or {}).items()]
            about = {"model_id": version.tags[models.LOGGED]}
            _log_metrics(self._client, str(version.run_id), points, about)
            return int(version.version)

    def find(self, fingerprint: str) -> int | None:
        """Return the newest version with that fingerprint; None: none exists."""
        with self._asking():
            version = self._find(fingerprint)
            return None if version is None else int(version.version)

    def champion(self) -> int | None:
        """Return the version of the alias; None: the alias does not exist."""
        from mlflow.exceptions import MlflowException

        with self._asking():
            try:
                return int(self._client.get_model_version_by_alias(self.name, CHAMPION).version)
            except MlflowException as error:
                if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    return None
                raise

    def set_champion(self, version: int) -> None:
        """Set the alias to a version, unless it is set already."""
        if self.champion() != version:
            with self._asking():
                self._client.set_registered_model_alias(self.name, CHAMPION, str(version))

    def _find(self, fingerprint: str) -> ModelVersion | None:
        """Return the newest version with that fingerprint."""
        query = f"name = '{self.name}' and tag.`{models.FINGERPRINT}` = '{fingerprint}'"
        order = ["version_number DESC"]
        versions = self._client.search_model_versions(query, max_results=1, order_by=order)
        return versions[0] if versions else None

    def _run(self, experiment: str, build: str | None) -> str | None:
        """Return the id of a build's MLflow run."""
        run = _known_run(self._client, experiment, build) if build else None
        return str(run.info.run_id) if run else None

    def _new_run(self, experiment: str, checkpoint: models.Checkpoint) -> str:
        """Return a run for a checkpoint whose training MLflow does not know; create it once."""
        run_key = f"registered {checkpoint.key}"
        existing = self._run(experiment, run_key)
        if existing is not None:
            return existing
        name = f"registered {Path(checkpoint.path).name}"
        run = self._client.create_run(
            experiment, tags={**checkpoint.all_tags, OUR_ID: run_key}, run_name=name
        )
        self._client.set_terminated(run.info.run_id)
        return str(run.info.run_id)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Convert MLflow's exceptions to errors with a one-sentence message."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except TimeoutError as error:  # of a lock
            raise ClozeError(str(error)) from None
        except MlflowException as error:
            message = (str(error).strip().splitlines() or ["no reason given"])[0]
            if error.error_code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"):
                raise UsageError(
                    f"MLflow rejected a request for the registered model {self.name}: {message}; "
                    f"check the model's name and version in MLflow"
                ) from error
            raise ClozeError(
                f"MLflow at {redact(self.uri)} did not answer for model {self.name} ({message}); "
                f"check that the server runs"
            ) from error
