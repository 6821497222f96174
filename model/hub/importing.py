"""From a Hugging Face directory to a checkpoint that every stage reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from model import checkpoint
from model.checkpoint import CONFIG, PICKLES, WEIGHTS
from model.config import ModelConfig
from model.families import is_backbone, restore, restore_backbone
from model.hub import hub_of_model_type
from pipeline import storage, tokenizer
from pipeline.errors import DataError

INDEX = WEIGHTS + ".index.json"  # of weights that are cut into several files


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A Hugging Face directory in our terms; the fields are those of a checkpoint."""

    model: ModelConfig
    heads: Mapping[str, Any]
    task: Mapping[str, Any] | None
    state: dict[str, Tensor] = field(repr=False)


def import_directory(directory: str, out: str) -> None:
    """Write the checkpoint `out` from the Hugging Face directory `directory`, tokenizer included.

    Raises:
        DataError: a file is missing or damaged, the weights are a pickle, or the model is none of ours.
    """
    found = read_directory(directory)
    fits = restore_backbone if "classifier" in found.heads else restore
    fits(found.model, found.state)  # the shapes fit, and nothing is missing
    checkpoint.save_weights(
        out, model=found.model, state=found.state, tokenizer=tokenizer.load(directory), heads=found.heads, task=found.task
    )
    checkpoint.complete(out)


def read_directory(directory: str) -> Imported:
    """Config and weights of a Hugging Face directory, under our names, in fp32.

    Raises:
        DataError: as for `import_directory`, but for shapes.
    """
    name = storage.join(directory, CONFIG)
    config = _read_json(name)
    hub = hub_of_model_type(config.get("model_type"), name)
    model = hub.from_config(config, name)
    state = hub.from_state(_read_weights(directory), directory)
    present = {parameter.split(".", 1)[0] for parameter in state if not is_backbone(parameter)}
    if frozenset(present) not in hub.architectures:
        known = " or ".join(sorted(hub.architectures.values()))
        heads = ", ".join(sorted(present)) or "none"
        raise DataError(f"{directory} has the heads {heads}, which no model of ours has; save it as {known}")
    if "classifier" not in present:
        return Imported(model=model, heads=model.heads, task=None, state=state)
    for parameter in ("classifier.weight", "classifier.bias"):
        if parameter not in state:
            raise DataError(f"{directory} lacks {parameter}; use a complete Hugging Face directory")
    count = state["classifier.bias"].shape[0]
    return Imported(model=model, heads={"classifier": {"num_labels": count}}, task=_task(config, count, name), state=state)


def _task(config: Mapping[str, Any], count: int, where: str) -> dict[str, Any]:
    """The task that our own export wrote down; of another's model, its labels."""
    if "cloze_task" in config:
        return dict(config["cloze_task"])
    names = config.get("id2label") or {str(number): f"LABEL_{number}" for number in range(count)}
    if sorted(names) != sorted(str(number) for number in range(count)):
        raise DataError(f"{where} names {len(names)} labels in id2label, the classifier has {count}; correct id2label")
    return {"name": "imported", "labels": [str(names[str(number)]) for number in range(count)]}


def _read_weights(directory: str) -> dict[str, Tensor]:
    if storage.exists(storage.join(directory, WEIGHTS)):
        return checkpoint.read_tensors(storage.join(directory, WEIGHTS))
    index = storage.join(directory, INDEX)
    if storage.exists(index):
        weight_map = _read_json(index).get("weight_map")
        files = sorted({str(file) for file in weight_map.values()}) if isinstance(weight_map, dict) else []
        bad = [file for file in files if "/" in file or "\\" in file]
        if bad or not files:
            raise DataError(f"{index} names {bad[0] if bad else 'no files'}; it must name files beside it")
        return {key: value for file in files for key, value in checkpoint.read_tensors(storage.join(directory, file)).items()}
    pickles = [file for file in storage.list_files(directory) if file.endswith(PICKLES)]
    if pickles:
        return checkpoint.read_tensors(storage.join(directory, pickles[0]))  # says why not
    raise DataError(f"{directory} has no {WEIGHTS}; use a complete Hugging Face directory")


def _read_json(path: str) -> dict[str, Any]:
    try:
        content = json.loads(storage.read_text(path))
    except ValueError as error:
        raise DataError(f"{path} is no JSON ({error}); use a complete Hugging Face directory") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds no JSON object; use a complete Hugging Face directory")
    return content
