"""A checkpoint as an MLflow LoggedModel and as a version of a registered model; idempotent.

The model is a directory that `mlflow.pyfunc.load_model` opens with `cloze.model.pyfunc`, which
needs Cloze installed:

    MLmodel, requirements.txt, …     signature and requirements
    data/                            the checkpoint: safetensors, config, tokenizer

Writing it needs no torch and no pickle. If MLflow's files are on this machine, the weights are
linked, not copied.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import posixpath
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from cloze.core import accounts, storage
from cloze.core.artifacts import artifact
from cloze.core.artifacts.checkpoints import COMPLETE, pinned
from cloze.core.errors import DataError
from cloze.core.humanize import labelled

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion

TEXT = "text"  # input column of single texts
EXAMPLE = "The capital of the country is [MASK]."
LISTS = {"choices": "string", "labels": "string", "vector": "double"}  # columns of lists: items
VERBS = "cloze.model.use.verb"
LOADER = "cloze.model.pyfunc"
DATA = "data"
CONFIG, TRAINING = "config.json", "training/"  # of a checkpoint, see model/checkpoint.py
NEWEST = "newest"  # alias of the latest version
MODEL_ID = "cloze.model"  # id of a LoggedModel: build and step
FINGERPRINT, CHECKPOINT = "cloze.fingerprint", "cloze.checkpoint"
NODE, STEP = "cloze.node", "cloze.step"
FIRST_FIGURES = ("heldout_loss", "accuracy", "f1", "matthews", "pearson", "mean", "loss")  # by rank
RUN_NAME = "cloze.run_name"  # name of the run that the node belongs to
LOGGED = "cloze.model_id"  # tag of a version: its LoggedModel's id, which MLflow does not store
VERSIONS = "mlflow.modelVersions"  # tag of a LoggedModel
LOCK = "models.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint to record."""

    path: str  # directory of the complete checkpoint
    # artifact's fingerprint, or `FINGERPRINT/checkpoints/STEP` for an intermediate checkpoint
    fingerprint: str
    build: str = ""  # id of the training's build; empty: unknown
    node: str = ""
    step: int = 0
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Key of the LoggedModel; two builds can have the same fingerprint."""
        return f"{self.build or self.fingerprint}/{self.step}"

    @property
    def name(self) -> str:
        return (self.node or "checkpoint") + f"-step-{self.step}" * bool(self.step)

    @property
    def all_tags(self) -> dict[str, str]:
        identity = {
            MODEL_ID: self.key,
            FINGERPRINT: self.fingerprint,
            CHECKPOINT: self.path,
            NODE: self.node,
            STEP: str(self.step),
        }
        return {**self.tags, **{name: value for name, value in identity.items() if value}}

    def config(self) -> dict[str, Any]:
        """Return the checkpoint's `config.json`.

        Raises DataError: the checkpoint is missing or incomplete.
        """
        if not storage.exists(storage.join(self.path, COMPLETE)):
            raise DataError(
                f"{self.path} has no complete checkpoint ({COMPLETE} is missing); it was pruned "
                f"or removed"
            )
        return storage.read_json(storage.join(self.path, CONFIG))

    def files(self) -> list[str]:
        """Return the relative names of the files that the model needs.

        Raises DataError: a name leads out of the checkpoint.
        """
        content = storage.read_json(storage.join(self.path, COMPLETE))
        names = [str(entry["path"]) for entry in content["files"]]
        for name in names:
            if not is_inside(name):
                raise DataError(
                    f"{self.path}/{COMPLETE} names {name!r}, which lies outside of the checkpoint; "
                    f"use another one"
                )
        return [COMPLETE, *(name for name in names if not name.startswith(TRAINING))]


def is_inside(name: str) -> bool:
    """Return whether a relative name stays below the directory that it is joined to."""
    parts = posixpath.normpath(name).split("/")
    return bool(name) and not (posixpath.isabs(name) or ".." in parts or {*name} & {"\0", "\\"})


def registered_name(config: Mapping[str, Any] | None = None, project: str | None = None) -> str:
    """Return `$CLOZE_REGISTERED_MODEL`, or the project; of a fine-tuned checkpoint `NAME-TASK`."""
    name = os.environ.get("CLOZE_REGISTERED_MODEL") or accounts.project(project)
    task = config.get("task") if config else None
    return f"{name}-{task['name']}" if task else name


def logged_model(
    client: MlflowClient, experiment_id: str, checkpoint: Checkpoint, run_id: str | None
) -> LoggedModel:
    """Return a checkpoint's READY LoggedModel; upload it if it is missing or incomplete.

    `run_id`: MLflow's id of the run that made the checkpoint.

    Raises:
        DataError: the checkpoint is missing or damaged, or MLflow cannot serve its heads.
        MlflowException: the server rejects the model, or cannot be reached.
    """
    from mlflow.entities import LoggedModelOutput

    reason = why_not_served(checkpoint.config())
    if reason is not None:
        raise DataError(reason)
    query = f"tags.`{MODEL_ID}` = '{checkpoint.key}'"
    matches = client.search_logged_models([experiment_id], filter_string=query, max_results=1)
    model: LoggedModel = (
        matches[0]
        if matches
        else client.create_logged_model(
            experiment_id,
            name=re.sub(r"""[/:.%"']""", "-", checkpoint.name),  # which MLflow rejects
            source_run_id=run_id,
            tags=checkpoint.all_tags,
            model_type="cloze",
        )
    )
    if model.status != "READY":
        with pinned(checkpoint.path):
            _upload(client, model, checkpoint)
        model = client.finalize_logged_model(model.model_id, "READY")
    outputs = client.get_run(run_id).outputs if run_id else None
    if run_id and model.model_id not in {
        output.model_id for output in (outputs.model_outputs if outputs else [])
    }:
        client.log_outputs(run_id, [LoggedModelOutput(model.model_id, checkpoint.step)])
    return model


def version(
    client: MlflowClient, name: str, model: LoggedModel, tags: Mapping[str, str]
) -> ModelVersion:
    """Return the LoggedModel's version of the registered model `name`; create it if needed.

    The alias `newest` is set to the highest version.
    """
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(
            name, description="Checkpoints of Cloze. Load one with mlflow.pyfunc.load_model."
        )
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    versions = client.search_model_versions(f"name='{name}'")
    current = client.get_logged_model(model.model_id)  # with the metrics logged since
    registered = next(
        (existing for existing in versions if existing.tags.get(LOGGED) == model.model_id), None
    )
    if registered is None:
        registered = client.create_model_version(
            name,
            model.artifact_location,
            run_id=model.source_run_id,
            tags={**tags, LOGGED: model.model_id},
            description=_description(tags, current),
            model_id=model.model_id,
        )
    # a server sets it, a database client does not
    if VERSIONS not in current.tags:
        client.set_logged_model_tags(
            model.model_id, {VERSIONS: json.dumps([{"name": name, "version": registered.version}])}
        )
    if all(int(existing.version) <= int(registered.version) for existing in versions):
        client.set_registered_model_alias(name, NEWEST, registered.version)
    return registered


def _description(tags: Mapping[str, str], model: LoggedModel) -> str:
    """Return the known parts of `held-out loss 3.502 · RUN · NODE · step N`, which pages cut."""
    step = f"step {tags[STEP]}" if STEP in tags else ""
    values = {metric.key.rpartition("/")[2]: metric.value for metric in model.metrics or ()}
    figure = next((name for name in FIRST_FIGURES if name in values), "")
    result = labelled(figure, values[figure]).replace("heldout", "held-out") if figure else ""
    known = (result, tags.get(RUN_NAME, ""), tags.get(NODE, ""), step)
    return " · ".join(filter(None, known))


def _upload(client: MlflowClient, model: LoggedModel, checkpoint: Checkpoint) -> None:
    config, names = checkpoint.config(), checkpoint.files()
    with tempfile.TemporaryDirectory(prefix="cloze-") as temporary:
        description = Path(temporary) / "model"
        _describe(description, config, model)
        place = urlparse(model.artifact_location)
        if place.scheme not in ("", "file"):
            client.log_model_artifacts(model.model_id, str(description))
            for name in names:
                target = posixpath.join(DATA, posixpath.dirname(name)).rstrip("/")
                with local_copy(storage.join(checkpoint.path, name)) as path:
                    client.log_model_artifact(model.model_id, path, target)
            return
        root = Path(unquote(place.path))
        for name in storage.list_files(str(description)):  # with the modes of files made there
            with storage.atomic_output(str(root / name)) as file:
                file.write((description / name).read_bytes())
        for name in names:
            artifact.link_file(storage.join(checkpoint.path, name), str(root / DATA / name))


@contextlib.contextmanager
def local_copy(path: str) -> Iterator[str]:
    """Yield the path of a file, or of a temporary copy if it is on a store."""
    if storage.is_local(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="cloze-") as temporary:
        copy = str(Path(temporary) / posixpath.basename(path))
        storage.download(path, copy)
        yield copy


def _describe(directory: Path, config: Mapping[str, Any], model: LoggedModel) -> None:
    """Write MLmodel and the files next to it."""
    with warnings.catch_warnings():  # about MLflow's own type hints
        warnings.simplefilter("ignore")
        # `from mlflow import` would import it lazily
        pyfunc = importlib.import_module("mlflow.pyfunc")
        import pandas
        from mlflow.models import Model, ModelSignature
        from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
        from mlflow.types.schema import Array

    served = served_by(config)
    assert served is not None  # callers have checked `why_not_served`

    def schema(*columns: str) -> Schema:
        pairs = (column.split(":") for column in columns)
        return Schema(
            [
                ColSpec(Array(DataType[LISTS[name]]) if name in LISTS else DataType[kind], name)
                for name, kind in pairs
            ]
        )

    inputs = schema(*(f"{name}:string" for name in served.inputs))
    signature = ModelSignature(
        inputs=inputs if served.inputs != (TEXT,) else None,
        outputs=schema(*served.outputs.split()),
        params=ParamSchema(
            [ParamSpec(name, DataType.long, value) for name, value in served.params.items()]
        )
        or None,
    )
    example = {name: [[EXAMPLE, EXAMPLE] if name in LISTS else EXAMPLE] for name in served.inputs}
    mlflow_model = Model(
        artifact_path=model.artifact_location,
        model_uuid=model.model_id,
        run_id=model.source_run_id,
        model_id=model.model_id,
    )
    pyfunc.save_model(
        str(directory),
        loader_module=LOADER,
        mlflow_model=mlflow_model,
        signature=signature,
        input_example=pandas.DataFrame(example) if signature.inputs else [EXAMPLE],
        pip_requirements=[
            f"cloze-pretraining-base[train]=={importlib.metadata.version('cloze-pretraining-base')}"
        ],
        metadata={"format": "checkpoint", "step": config.get("step", 0), "columns": served.inputs},
    )
    mlflow_model.flavors[pyfunc.FLAVOR_NAME][pyfunc.DATA] = DATA
    mlflow_model.save(str(directory / "MLmodel"))


# Columns and parameters of a checkpoint in MLflow, by its verb's row.


def served_by(config: Mapping[str, Any]) -> Any | None:
    """Return the `TableColumns` of a checkpoint; None: it has none, as with multi-task heads."""
    name = resolve_name(f"{VERBS}:verb_of_heads")(config["heads"])
    columns = name and resolve_name(f"{VERBS}:PREDICTORS")[name].columns
    return columns(config) if columns else None


def why_not_served(config: Mapping[str, Any]) -> str | None:
    """Return why a checkpoint cannot be an MLflow model; None: it can."""
    if served_by(config) is not None:
        return None
    return (
        f"MLflow cannot ask a model with these heads: {', '.join(config['heads'])}; load it with "
        f"cloze.load"
    )
