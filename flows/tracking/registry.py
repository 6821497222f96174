"""The registered model of an MLflow server: its versions, its champion, and who was champion before.

The alias `champion` is the truth: `models:/cloze@champion`. Each change is a tag of the registered model besides, written before the alias
moves, so that a change which was cut short shows as one that never took effect. These calls go straight to MLflow and wait for it.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.tracking import models
from flows.tracking.client import connect, experiment_id
from flows.tracking.spool import DIRECTORY, EXPERIMENT, OUR_ID, tracking_uri
from flows.tracking.versions import PROMOTE, ROLLBACK, iso, now, reigns
from flows.tracking.versions import Change as Change
from flows.tracking.versions import Version as Version
from pipeline.core.errors import ClozeError, UsageError
from pipeline.core.secrets import masked

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

MODEL = "cloze"
CHAMPION = "champion"
CHANGE = "cloze.champion."  # and a number: a tag of the registered model


class Registry:
    """One registered model. Every call raises ClozeError where MLflow does not answer."""

    def __init__(self, runs: Path, uri: str | None = None, name: str | None = None, experiment: str = EXPERIMENT) -> None:
        """Args:
        runs: the runs' directory.
        uri: of the server or the database; without it, the one that runs are recorded in.
        name: of the registered model; without it `$CLOZE_MODEL`, or `cloze`.
        """
        self.name = name or os.environ.get("CLOZE_MODEL") or MODEL
        self.uri, self.experiment = uri or tracking_uri(runs), experiment
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
    ) -> Version:
        """The version of that fingerprint: made from the checkpoint if there is none, else given the metrics and tags besides.

        Args:
            checkpoint: a complete checkpoint directory.
            metrics: by name (letters, digits and `_-./: `).
            step: that the checkpoint is of, and the metrics.
            build: the build id of the training that made it; its run in MLflow gets the metrics, too.

        Raises:
            DataError: there is no complete checkpoint.
            UsageError: MLflow refuses a name or a value.
        """
        with self._asking(), models.one_at_a_time(self._directory):
            known = self._find(fingerprint)
            experiment = experiment_id(self._client, self.experiment, self.uri)
            if known is None:
                wanted = models.Checkpoint(
                    path=checkpoint, fingerprint=fingerprint, build=build or "", step=step, tags=dict(tags or {})
                )
                run = self._run(experiment, build) or self._new_run(experiment, wanted)
                model = models.logged_model(self._client, experiment, wanted, run)
                known = models.version(self._client, self.name, model, wanted.all_tags)
            else:
                for name, value in (tags or {}).items():
                    self._client.set_model_version_tag(self.name, known.version, name, value)
            if metrics:
                self._log_metrics(known, metrics, step)
            return self._version(self._client.get_model_version(self.name, known.version))

    def find(self, fingerprint: str) -> Version | None:
        """The version of that fingerprint, the newest if there are several."""
        with self._asking():
            found = self._find(fingerprint)
            return None if found is None else self._version(found)

    def version(self, number: int) -> Version:
        """Raises: UsageError: there is no such version."""
        for found in self.versions():
            if found.number == number:
                return found
        raise UsageError(f"model {self.name} has no version {number}; `cloze champion` lists what there is")

    def versions(self) -> list[Version]:
        """Oldest first."""
        with self._asking():
            return [self._version(found) for found in self._all()]

    def champion(self) -> Version | None:
        """The version that the alias names."""
        from mlflow.exceptions import MlflowException

        with self._asking():
            try:
                return self._version(self._client.get_model_version_by_alias(self.name, CHAMPION))
            except MlflowException as error:
                if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    return None
                raise

    def promote(self, version: Version | int, why: str) -> Change:
        """Make a version the champion.

        Raises:
            UsageError: there is no such version, or it is the champion.
        """
        return self._change(self.version(version.number if isinstance(version, Version) else version), why, PROMOTE)

    def rollback(self, why: str = "by hand") -> Version:
        """Make the champion's predecessor champion again.

        Raises:
            UsageError: there is none.
        """
        reigned = reigns(self.history(), self.champion())
        if len(reigned) < 2:
            raise UsageError(f"model {self.name} had no champion before this one; promote a version first")
        self._change(self.version(reigned[-2]), why, ROLLBACK)
        return self.version(reigned[-2])

    def history(self) -> list[Change]:
        """Oldest first."""
        from mlflow.exceptions import MlflowException

        with self._asking():
            try:
                tags = self._client.get_registered_model(self.name).tags
            except MlflowException as error:
                if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                    return []
                raise
        return [Change(**json.loads(tags[name])) for name in sorted(tags) if name.startswith(CHANGE)]

    def _change(self, version: Version, why: str, kind: str) -> Change:
        before = self.champion()
        if before is not None and before.number == version.number:
            raise UsageError(f"version {version.number} of model {self.name} is the champion already; name another version")
        change = Change(
            time=now(),
            version=version.number,
            replaced=None if before is None else before.number,
            why=why,
            kind=kind,
            by=f"{getpass.getuser()}@{socket.gethostname()}",
        )
        number = len(self.history()) + 1
        with self._asking():
            client = self._client
            client.set_registered_model_tag(self.name, f"{CHANGE}{number:05d}", json.dumps(asdict(change), ensure_ascii=False))
            client.set_registered_model_alias(self.name, CHAMPION, str(version.number))
            told = {"champion_since": change.time, "champion_why": why, "champion_replaced": str(change.replaced or "none")}
            for name, value in told.items():
                client.set_model_version_tag(self.name, str(version.number), f"cloze.{name}", value)
            if before is not None:
                by = f"version {version.number} at {change.time} ({kind}): {why}"
                client.set_model_version_tag(self.name, str(before.number), "cloze.champion_replaced_by", by)
        return change

    def _all(self) -> list[ModelVersion]:
        found, token = [], None
        while True:
            page = self._client.search_model_versions(f"name='{self.name}'", page_token=token)
            found += page
            token = page.token
            if not token:
                return sorted(found, key=lambda each: int(each.version))

    def _find(self, fingerprint: str) -> ModelVersion | None:
        return next((each for each in reversed(self._all()) if each.tags.get(models.FINGERPRINT) == fingerprint), None)

    def _version(self, found: ModelVersion) -> Version:
        full = self._client.get_model_version(self.name, found.version)  # a search tells no aliases
        model_id = full.tags.get(models.LOGGED, "")
        model = self._client.get_logged_model(model_id) if model_id else None
        newest: dict[str, Any] = {}
        for metric in model.metrics or [] if model else []:
            if metric.key not in newest or (metric.step, metric.timestamp) >= newest[metric.key][0]:
                newest[metric.key] = ((metric.step, metric.timestamp), metric.value)
        return Version(
            name=self.name,
            number=int(full.version),
            fingerprint=full.tags.get(models.FINGERPRINT, ""),
            checkpoint=full.tags.get(models.CHECKPOINT, ""),
            created=iso(full.creation_timestamp / 1000),
            tags=dict(full.tags),
            metrics={name: value for name, (_, value) in newest.items()},
            aliases=tuple(full.aliases),
            model_id=model_id,
            run_id=full.run_id or "",
        )

    def _run(self, experiment: str, build: str | None) -> str | None:
        """MLflow's run of a build."""
        found = self._client.search_runs([experiment], f"tags.`{OUR_ID}` = '{build}'", max_results=1) if build else []
        return str(found[0].info.run_id) if found else None

    def _new_run(self, experiment: str, wanted: models.Checkpoint) -> str:
        """A run for a checkpoint whose training MLflow does not know; one, however often it is asked for."""
        ours = f"registered {wanted.key}"
        known = self._run(experiment, ours)
        if known is not None:
            return known
        name = f"registered {Path(wanted.path).name}"
        run = self._client.create_run(experiment, tags={**wanted.all_tags, OUR_ID: ours}, run_name=name)
        self._client.set_terminated(run.info.run_id)
        return str(run.info.run_id)

    def _log_metrics(self, version: ModelVersion, metrics: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        stamp = int(time.time() * 1000)
        entries = [
            Metric(name, float(value), stamp, step, model_id=version.tags[models.LOGGED]) for name, value in metrics.items()
        ]
        self._client.log_batch(version.run_id, metrics=entries)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Turns what MLflow raises into one sentence."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except MlflowException as error:
            sentence = (str(error).strip().splitlines() or ["no reason given"])[0]
            if error.error_code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"):
                raise UsageError(f"MLflow refused a call for model {self.name} ({sentence}); mend it") from error
            raise ClozeError(
                f"MLflow at {masked(self.uri)} did not answer for model {self.name} ({sentence}); see that it runs"
            ) from error
