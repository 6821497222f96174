"""From a Hugging Face directory to a checkpoint that every stage reads."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from model import checkpoint
from model.checkpoint import CONFIG, WEIGHTS
from model.families.config import ModelConfig
from model.families.hub import LABELLED, POOLED, TASK, Hub, exportable, hub_of
from model.families.models import bare_pooler, new_model, restore, restore_backbone
from model.layers.moved import DELTA
from model.tensors import PICKLES, read_tensors
from pipeline import tokenizer
from pipeline.core import storage
from pipeline.core.errors import DataError, UsageError

# What another's fine-tuned model does, by head: tasks of files of one's own, and questions that have an answer.
_TASKS = {"classifier": "classification", "span": "squad", "token_classifier": "tagging", "choice": "choice"}
INDEX = WEIGHTS + ".index.json"  # of weights that are cut into several files


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A Hugging Face directory in our terms; the fields are those of a checkpoint.

    Attributes:
        fresh: parameters of pretraining heads that the directory lacks; they have their first random values.
        left_out: parameters of the directory that the family has no use for.
    """

    model: ModelConfig
    heads: Mapping[str, Any]
    task: Mapping[str, Any] | None
    state: dict[str, Tensor] = field(repr=False)
    fresh: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def import_directory(
    directory: str, out: str, *, family: str | None = None, positions: int | None = None, trust_pickle: bool = False
) -> Imported:
    """Write the checkpoint `out` from the Hugging Face directory `directory`, tokenizer included.

    Args:
        family: what it becomes; None: the family of its `model_type`.
        positions: the longest L, for a family that can be made longer.
        trust_pickle: read weights from a pickle, with `weights_only=True`, where there is no safetensors file.

    Raises:
        DataError: a file is missing or damaged, the weights are a pickle, or the model is none of ours.
        UsageError: the directory's model cannot become one of `family`.
    """
    found = read_directory(directory, family=family, positions=positions, trust_pickle=trust_pickle)
    fits = restore if found.task is None else restore_backbone
    fits(found.model, found.state)  # the shapes fit, and nothing is missing
    pieces = tokenizer.load(directory)
    if pieces.vocab_size > found.model.vocab_size:
        raise DataError(
            f"{directory} has a tokenizer of {pieces.vocab_size:,} pieces and an embedding of {found.model.vocab_size:,}; use"
            " the tokenizer that the model was trained with"
        )
    checkpoint.save_weights(out, model=found.model, state=found.state, tokenizer=pieces, heads=found.heads, task=found.task)
    checkpoint.complete(out)
    return found


def read_directory(
    directory: str, *, family: str | None = None, positions: int | None = None, trust_pickle: bool = False
) -> Imported:
    """Config and weights of a Hugging Face directory, under our names, in fp32.

    Args and Raises: as for `import_directory`, but for shapes.
    """
    name = storage.join(directory, CONFIG)
    config = _read_json(name)
    hub = _hub_of_config(config, name)
    convert = None
    if family is not None and family != hub.family:
        convert = hub_of(family).converts.get(hub.family)
        if convert is None and hub_of(family).model_type != hub.model_type:
            known = sorted({hub.family, *(name for name in exportable() if hub.family in hub_of(name).converts)})
            raise UsageError(f"as ({family}) is nothing that a {hub.family} model can become; choose from {', '.join(known)}")
        hub = hub if convert else hub_of(family)
    model = hub.from_config(config, name)
    head = hub.head_of(config)
    state = hub.from_state(_read_weights(directory, trust_pickle), directory, head)
    state = {key: tensor for key, tensor in state.items() if key not in hub.unread(model)}
    if convert is not None:
        model, state = convert(model, state, positions or model.max_position_embeddings)
    elif positions is not None and positions != model.max_position_embeddings:
        raise UsageError(f"positions ({positions}) can be chosen where a model becomes another (--as longformer); leave it out")
    if head is None and "classifier.weight" not in state and "classifier.bias" not in state:
        return complete(model, state)
    return _fine_tuned(model, state, head or "classifier", config, directory)


def _fine_tuned(model: ModelConfig, state: dict[str, Tensor], head: str, config: Mapping[str, Any], directory: str) -> Imported:
    """A fine-tuned checkpoint.

    Raises:
        DataError: the head is not there as a whole, or its labels are not as many as its outputs.
    """
    pooler = bare_pooler(model)
    biased = head not in POOLED or getattr(pooler, "head_bias", True)
    for parameter in (f"{head}.weight", *((f"{head}.bias",) if biased else ())):
        if parameter not in state:
            raise DataError(f"{directory} lacks {parameter}; use a complete Hugging Face directory")
    count = state[f"{head}.weight"].shape[0]
    pooled = (head in POOLED or hasattr(pooler, "transform")) and next(pooler.parameters(), None) is not None
    if pooled and not any(name.startswith("pooler.") for name in state):
        raise DataError(f"{directory} lacks the pooler, on which its {head} stands; use a complete Hugging Face directory")
    wanted = ("encoder.", f"{head}.", *(("pooler.",) if pooled else ()))
    kept = {key: tensor for key, tensor in state.items() if key.startswith(wanted)}
    left = tuple(sorted(state.keys() - kept.keys()))
    heads = {head: {"num_labels": count} if head in LABELLED else {}}
    task = _task(config, head, count, storage.join(directory, CONFIG), model.max_position_embeddings)
    return Imported(model=model, heads=heads, task=task, state=kept, left_out=left)


def _hub_of_config(config: Mapping[str, Any], where: str) -> Hub:
    """The Hugging Face form of a config, found in the file `where`: that of its `model_type` whose fixed values it has.

    Raises:
        DataError: no family of ours has that type.
    """
    hubs = [hub_of(family) for family in exportable()]
    model_type = config.get("model_type")
    found = [hub for hub in hubs if hub.model_type == model_type]
    if not found:
        known = ", ".join(sorted({hub.model_type for hub in hubs}))
        raise DataError(f"{where} has the model_type {model_type!r}, which Cloze does not know; use one of {known}")
    fitting = [hub for hub in found if all(config.get(name, value) == value for name, value in hub.fixed.items())]
    return [*fitting, *found][0]


def complete(model: ModelConfig, state: dict[str, Tensor]) -> Imported:
    """A pretraining checkpoint: heads that `state` lacks begin anew, those of other families stay behind.

    Raises:
        DataError: a head is there in part.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        own = new_model(model).state_dict()
    lacking = {name: tensor for name, tensor in own.items() if name not in state}
    fresh = {name: tensor for name, tensor in lacking.items() if not name.startswith("encoder.") or name.endswith(DELTA)}
    there = {name.split(".", 1)[0] for name in state}
    halved = sorted(name for name in fresh if name.split(".", 1)[0] in there and not name.endswith(DELTA))
    if halved:
        raise DataError(f"the weights lack {halved[0]}, a part of what is there; use a complete Hugging Face directory")
    left = tuple(sorted(name for name in state if name not in own and not name.startswith("encoder.")))
    kept = {name: tensor for name, tensor in state.items() if name not in left}
    return Imported(
        model=model, heads=model.heads, task=None, state={**kept, **fresh}, fresh=tuple(sorted(fresh)), left_out=left
    )


def _task(config: Mapping[str, Any], head: str, count: int, where: str, longest: int) -> dict[str, Any]:
    """The task that our own export wrote down; of another's model, the general one of its kind, with its labels."""
    if TASK in config:
        return dict(config[TASK])
    task: dict[str, Any] = {"name": _TASKS[head], "max_length": longest}
    if head == "classifier" and count == 1:
        return {**task, "name": "regression"}
    if head == "classifier" and config.get("problem_type") not in (None, "single_label_classification"):
        task["name"] = "imported"  # several labels a text, several numbers: no task of ours; the encoder serves all the same
    if head not in LABELLED:
        return task
    names = config.get("id2label") or {str(number): f"LABEL_{number}" for number in range(count)}
    if sorted(names) != sorted(str(number) for number in range(count)):
        raise DataError(f"{where} names {len(names)} labels in id2label, the classifier has {count}; correct id2label")
    return {**task, "labels": [str(names[str(number)]) for number in range(count)]}


def _read_weights(directory: str, trust_pickle: bool) -> dict[str, Tensor]:
    if storage.exists(storage.join(directory, WEIGHTS)):
        return read_tensors(storage.join(directory, WEIGHTS))
    index = storage.join(directory, INDEX)
    if storage.exists(index):
        weight_map = _read_json(index).get("weight_map")
        files = sorted({str(file) for file in weight_map.values()}) if isinstance(weight_map, dict) else []
        bad = [file for file in files if "/" in file or "\\" in file]
        if bad or not files:
            raise DataError(f"{index} names {bad[0] if bad else 'no files'}; it must name files beside it")
        return {key: value for file in files for key, value in read_tensors(storage.join(directory, file)).items()}
    pickles = [file for file in storage.list_files(directory) if file.endswith(PICKLES)]
    if pickles and trust_pickle:
        return _read_pickle(storage.join(directory, pickles[0]))
    if pickles:
        raise DataError(
            f"{storage.join(directory, pickles[0])} is a pickle, which can run code when it is read; convert it to safetensors"
            " where it comes from, or say --trust-pickle, which reads tensors alone"
        )
    raise DataError(f"{directory} has no {WEIGHTS}; use a complete Hugging Face directory")


def _read_pickle(path: str) -> dict[str, Tensor]:
    """Tensors out of a pickle by torch's restricted reader, which runs no code that the file names."""
    try:
        with storage.open_input(path) as handle:
            content = torch.load(io.BytesIO(handle.read()), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the restricted reader meets
        raise DataError(f"{path} holds more than tensors, or is damaged ({type(error).__name__}); use safetensors") from error
    if not isinstance(content, dict) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise DataError(f"{path} is no table of tensors; use the model's weights file")
    return content


def _read_json(path: str) -> dict[str, Any]:
    try:
        content = json.loads(storage.read_text(path))
    except ValueError as error:
        raise DataError(f"{path} is no JSON ({error}); use a complete Hugging Face directory") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds no JSON object; use a complete Hugging Face directory")
    return content
