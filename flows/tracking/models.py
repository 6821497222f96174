"""A checkpoint as a LoggedModel of MLflow and as a version of a registered model, made once however often they are asked for.

The model is a directory that `mlflow.pyfunc.load_model` opens with `model.pyfunc`, which needs Cloze installed:

    MLmodel, requirements.txt, …     what it takes and gives
    data/                            the checkpoint: weights as safetensors, config, tokenizer; not what resuming needs

No torch is needed to write it, and no pickle is in it. Where MLflow keeps its files on this machine, the weights are linked, not copied.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.metadata
import json
import posixpath
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from pipeline.core import artifact, storage
from pipeline.core.checkpoints import COMPLETE, held
from pipeline.core.errors import DataError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion

LOADER = "model.pyfunc"
DATA = "data"
CONFIG, TRAINING = "config.json", "training/"  # of a checkpoint, see model/checkpoint.py
NEWEST = "newest"  # alias of the version that was made last
MODEL_ID = "cloze.model"  # names a LoggedModel as we do: the build and the step
FINGERPRINT, CHECKPOINT, NODE, STEP = "cloze.fingerprint", "cloze.checkpoint", "cloze.node", "cloze.step"
RUN_NAME = "cloze.run_name"  # whose node it is
LOGGED = "cloze.model_id"  # of a version: its LoggedModel's id, which MLflow does not keep there
VERSIONS = "mlflow.modelVersions"  # of a LoggedModel
LOCK = "models.lock"
EXAMPLE = {"masks": "The capital of the country is [MASK].", "labels": "A film that one would like to see again."}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint to record.

    Attributes:
        path: its directory, complete.
        fingerprint: of the artifact, or `FINGERPRINT/checkpoints/STEP` of one that is kept below it.
        build: names the training it is of; empty if it is not known.
        node: of the run's graph.
    """

    path: str
    fingerprint: str
    build: str = ""
    node: str = ""
    step: int = 0
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Tells LoggedModels apart: one training may be made twice with one fingerprint."""
        return f"{self.build or self.fingerprint}/{self.step}"

    @property
    def all_tags(self) -> dict[str, str]:
        ours = {MODEL_ID: self.key, FINGERPRINT: self.fingerprint, CHECKPOINT: self.path, NODE: self.node, STEP: str(self.step)}
        return {**self.tags, **{name: value for name, value in ours.items() if value}}

    def config(self) -> dict[str, Any]:
        """Its `config.json`.

        Raises:
            DataError: there is no complete checkpoint.
        """
        if not (Path(self.path) / COMPLETE).exists():
            raise DataError(f"{self.path} holds no complete checkpoint ({COMPLETE} is missing); it was pruned or removed")
        content: dict[str, Any] = json.loads((Path(self.path) / CONFIG).read_text(encoding="utf-8"))
        return content

    def files(self) -> list[str]:
        """The relative names of what the model needs.

        Raises:
            DataError: a name leads out of the checkpoint.
        """
        content = json.loads((Path(self.path) / COMPLETE).read_text(encoding="utf-8"))
        names = [str(entry["path"]) for entry in content["files"]]
        for name in names:
            if not is_inside(name):
                raise DataError(f"{self.path}/{COMPLETE} names {name!r}, which lies outside of the checkpoint; use another one")
        return [COMPLETE, *(name for name in names if not name.startswith(TRAINING))]


def is_inside(name: str) -> bool:
    """Whether a relative name stays below the directory that it is joined to."""
    parts = posixpath.normpath(name).split("/")
    return bool(name) and not posixpath.isabs(name) and ".." not in parts and "\0" not in name and "\\" not in name


def registered_name(name: str, config: Mapping[str, Any]) -> str:
    """`NAME` for a pretrained checkpoint, `NAME-TASK` for a fine-tuned one."""
    task = config.get("task")
    return f"{name}-{task['name']}" if task else name


@contextmanager
def one_at_a_time(directory: Path) -> Iterator[None]:
    """Among the processes of a runs directory: two that register one checkpoint at once make one version."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def logged_model(client: MlflowClient, experiment_id: str, checkpoint: Checkpoint, run_id: str | None) -> LoggedModel:
    """The LoggedModel of a checkpoint, READY; uploaded if it is not there, or only partly.

    Args:
        run_id: MLflow's id of the run that made it.

    Raises:
        DataError: the checkpoint is gone or damaged.
        MlflowException: the server refuses it, or cannot be reached.
    """
    from mlflow.entities import LoggedModelOutput

    query = f"tags.`{MODEL_ID}` = '{checkpoint.key}'"
    found = client.search_logged_models([experiment_id], filter_string=query, max_results=1)
    model: LoggedModel = (
        found[0]
        if found
        else client.create_logged_model(
            experiment_id, name=_model_name(checkpoint), source_run_id=run_id, tags=checkpoint.all_tags, model_type="cloze"
        )
    )
    if model.status != "READY":
        with held(checkpoint.path):
            _upload(client, model, checkpoint)
        model = client.finalize_logged_model(model.model_id, "READY")
    outputs = client.get_run(run_id).outputs if run_id else None
    if run_id and model.model_id not in {output.model_id for output in (outputs.model_outputs if outputs else [])}:
        client.log_outputs(run_id, [LoggedModelOutput(model.model_id, checkpoint.step)])
    return model


def version(client: MlflowClient, name: str, model: LoggedModel, tags: Mapping[str, str]) -> ModelVersion:
    """The version of the registered model `name` that is this LoggedModel; made if there is none. It becomes the newest."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name, description="Checkpoints of Cloze. Load one with mlflow.pyfunc.load_model.")
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    versions = client.search_model_versions(f"name='{name}'")
    made = next((each for each in versions if each.tags.get(LOGGED) == model.model_id), None)
    if made is None:
        made = client.create_model_version(
            name,
            model.artifact_location,
            run_id=model.source_run_id,
            tags={**tags, LOGGED: model.model_id},
            description=_description(tags),
            model_id=model.model_id,
        )
    if VERSIONS not in client.get_logged_model(model.model_id).tags:  # a server sets it, a client of the database does not
        client.set_logged_model_tags(model.model_id, {VERSIONS: json.dumps([{"name": name, "version": made.version}])})
    if all(int(each.version) <= int(made.version) for each in versions):
        client.set_registered_model_alias(name, NEWEST, made.version)
    return made


def _description(tags: Mapping[str, str]) -> str:
    """`RUN · NODE · step N`, as far as that is known."""
    step = f"step {tags[STEP]}" if STEP in tags else ""
    return " · ".join(part for part in (tags.get(RUN_NAME, ""), tags.get(NODE, ""), step) if part)


def _model_name(checkpoint: Checkpoint) -> str:
    """MLflow allows no `/ : . % " '` in a model's name."""
    name = f"{checkpoint.node or 'checkpoint'}-step-{checkpoint.step}" if checkpoint.step else checkpoint.node or "checkpoint"
    return "".join("-" if letter in "/:.%\"'" else letter for letter in name)


def _upload(client: MlflowClient, model: LoggedModel, checkpoint: Checkpoint) -> None:
    config, names = checkpoint.config(), checkpoint.files()
    with tempfile.TemporaryDirectory(prefix="cloze-") as place:
        description = Path(place) / "model"
        _describe(description, config, model)
        root = _local_directory(model.artifact_location)
        if root is None:
            client.log_model_artifacts(model.model_id, str(description))
            for name in names:
                target = posixpath.join(DATA, posixpath.dirname(name)).rstrip("/")
                client.log_model_artifact(model.model_id, str(Path(checkpoint.path) / name), target)
            return
        root.mkdir(parents=True, exist_ok=True)
        shutil.copytree(description, root, dirs_exist_ok=True)
        for name in names:
            artifact.link_file(storage.join(checkpoint.path, name), str(root / DATA / name))


def _local_directory(location: str) -> Path | None:
    parsed = urlparse(location)
    return Path(unquote(parsed.path)) if parsed.scheme in ("", "file") else None


def _describe(place: Path, config: Mapping[str, Any], model: LoggedModel) -> None:
    """Write MLmodel and what stands beside it."""
    with warnings.catch_warnings():  # MLflow warns of its own type hints
        warnings.simplefilter("ignore")
        pyfunc = importlib.import_module("mlflow.pyfunc")  # at once: `from mlflow import` would put it off
        import pandas
        from mlflow.models import Model, ModelSignature
        from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

    params, task = None, config.get("task") or {}
    if task:
        kind, outputs = "labels", [*([("string", "label")] if "labels" in task else []), ("double", "score")]
    else:
        kind = "masks"
        outputs = [("long", "text"), ("long", "mask"), ("string", "token"), ("double", "score"), ("string", "sequence")]
        params = ParamSchema([ParamSpec("top_k", DataType.long, 5)])
    columns = ("text", "text_pair") if task.get("pairs") else ()  # unnamed, the second column would be cut off
    signature = ModelSignature(
        inputs=Schema([ColSpec(DataType.string, name) for name in columns] or [ColSpec(DataType.string)]),
        outputs=Schema([ColSpec(DataType[name], column) for name, column in outputs]),
        params=params,
    )
    described = Model(
        artifact_path=model.artifact_location, model_uuid=model.model_id, run_id=model.source_run_id, model_id=model.model_id
    )
    pyfunc.save_model(
        str(place),
        loader_module=LOADER,
        mlflow_model=described,
        signature=signature,
        input_example=pandas.DataFrame([[EXAMPLE[kind]] * 2], columns=columns) if columns else [EXAMPLE[kind]],
        pip_requirements=[f"cloze=={importlib.metadata.version('cloze')}"],
        metadata={"format": "checkpoint", "step": config.get("step", 0)},
    )
    described.flavors[pyfunc.FLAVOR_NAME][pyfunc.DATA] = DATA
    described.save(str(place / "MLmodel"))
