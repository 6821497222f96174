"""The registered model on an MLflow server: its versions and the champion's alias.

The journal of nightly runs decides who is champion; the alias `models:/cloze@champion` follows.
These calls go straight to MLflow and wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cloze.core.errors import ClozeError, UsageError
from cloze.core.secrets import redact
from cloze.flows.tracking import models
from cloze.flows.tracking.spool import DIRECTORY, OUR_ID, tracking_uri
from cloze.flows.tracking.spool_state import connect, experiment_id, one_at_a_time

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

CHAMPION = "champion"


class Registry:
    """A registered model. Every call raises ClozeError if MLflow does not answer."""

    def __init__(self, runs: Path, uri: str | None = None) -> None:
        """Connect to MLflow.

        Args:
            runs: runs directory.
            uri: server or database. Default: where runs are recorded.
        """
        self.name, self.uri = models.registered_name(), uri or tracking_uri(runs)
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
            checkpoint: a complete checkpoint directory.
            metrics: metrics by name (letters, digits and `_-./: `).
            step: training step of the checkpoint and the metrics.
            build: build id of the training; its MLflow run gets the metrics, too.

        Raises:
            DataError: the checkpoint is missing or incomplete.
            UsageError: MLflow rejects a name or a value.
        """
        with self._asking(), one_at_a_time(self._directory, models.LOCK):
            version = self._find(fingerprint)
            experiment = experiment_id(self._client, self.uri)
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
            if metrics:
                self._log_metrics(version, metrics, step)
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
        runs = (
            self._client.search_runs([experiment], f"tags.`{OUR_ID}` = '{build}'", max_results=1)
            if build
            else []
        )
        return str(runs[0].info.run_id) if runs else None

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

    def _log_metrics(self, version: ModelVersion, metrics: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        milliseconds = int(time.time() * 1000)
        entries = [
            Metric(name, float(value), milliseconds, step, model_id=version.tags[models.LOGGED])
            for name, value in metrics.items()
        ]
        self._client.log_batch(version.run_id, metrics=entries)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Convert MLflow's exceptions to errors with a one-sentence message."""
        from mlflow.exceptions import MlflowException

        try:
            yield
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
