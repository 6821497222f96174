"""The client of MLflow, and the experiment that all runs are in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

KIND = "mlflow.experimentKind"  # without it, the UI guesses, and may open as that of language models' traces
TRAINING = "custom_model_development"
ARTIFACTS = "mlflow-artifacts"
SQLITE = "sqlite:///"


def connect(uri: str) -> MlflowClient:
    """A client that gives up soon: whoever needs an answer tries again."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # nobody needs to be told of each table that it makes
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def experiment_id(client: MlflowClient, name: str, uri: str) -> str:
    """The experiment's id; it is made, or comes back if it was deleted in the UI, and it is known as one of trainings."""
    found = client.get_experiment_by_name(name)
    if found is None:
        return str(client.create_experiment(name, artifact_location=_artifacts(uri), tags={KIND: TRAINING}))
    if found.lifecycle_stage == "deleted":  # nothing could be recorded any more
        client.restore_experiment(found.experiment_id)
    if KIND not in found.tags:
        client.set_experiment_tag(found.experiment_id, KIND, TRAINING)
    return str(found.experiment_id)


def _artifacts(uri: str) -> str | None:
    """Beside a SQLite file, not where the process happens to stand; a server decides for itself."""
    if not uri.startswith(SQLITE) or uri == SQLITE:
        return None
    return (Path(uri.removeprefix(SQLITE)).resolve().parent / ARTIFACTS).as_uri()
