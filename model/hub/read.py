"""Import of a Hugging Face directory as a checkpoint."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from cloze.core import storage
from cloze.core.errors import DataError, UsageError
from cloze.core.label_metrics import ENTITY_TAG
from cloze.model import checkpoint
from cloze.model.checkpoint import CONFIG
from cloze.model.families.config import ModelConfig
from cloze.model.families.hub_format import (
    EMBEDDING,
    LABELLED,
    POOLED,
    TASK,
    TIED,
    WORDS,
    HubFormat,
    without_nulls,
)
from cloze.model.families.hub_formats import exportable, formats, hub_of
from cloze.model.families.models import load_backbone, load_model, meta_pooler, new_model
from cloze.model.hub.weights import read_config, read_json, read_weights
from cloze.model.layers.embeddings import DELTA
from cloze.pipeline import tokenizer
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

# Task of an imported fine-tuned model by head: tasks of user files, and questions with answers.
_TASKS = {
    "classifier": "classification",
    "span": "squad",
    "token_classifier": "tagging",
    "choice": "choice",
}
# Model types that look like those of a family, and why they are none.
UNKNOWN_TYPES = {
    "umt5": "whose every layer has relative positions of its own, where T5's share the first one's",
    "xlm-roberta-xl": "whose layers normalize their input, where XLM-RoBERTa's do their output",
    "mpnet": "whose attention adds a bias by relative position to BERT's, which no family here has",
    "deberta": "the first DeBERTa, whose layers differ from deberta-v2's (in_proj, q_bias, v_bias)",
}
# Poolings of sentence-transformers, old and new, in Cloze's words.
POOLINGS = {"mean_tokens": "mean", "mean": "mean", "cls_token": "first", "cls": "first"}
MULTI_LABEL = "multi_label_classification"  # `problem_type`
TASK_CLASSES = ("Classification", "Answering", "MultipleChoice", "EncoderModel")
ONLY_TIED = ("LMHeadModel", "ForConditionalGeneration", "MTModel")  # the matrix is the head
OUTPUT = "encoder.output.weight"  # the head of T5 1.1
GENERATION = "generation_config.json"
DECODER_IDS = ("decoder_start_token_id", "forced_bos_token_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedModel:
    """Contents of a Hugging Face directory in Cloze's terms; the fields are those of a checkpoint.

    Attributes:
        fresh: parameters of pretraining heads that the directory lacks, randomly initialized.
        left_out: parameters of the directory that the family does not use, under its names.
    """

    model: ModelConfig
    heads: Mapping[str, Any]
    task: Mapping[str, Any] | None
    state: dict[str, Tensor] = field(repr=False)
    fresh: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def untrained(self) -> tuple[str, ...]:
        """The modules of `fresh`: heads, and the pooler."""
        names = (name for name in self.fresh if not name.endswith(DELTA))
        return tuple(
            sorted({n.removesuffix(".weight") if n == OUTPUT else n.split(".")[0] for n in names})
        )


def import_directory(
    directory: str,
    out: str,
    *,
    family: str | None = None,
    positions: int | None = None,
    trust_pickle: bool = False,
) -> ImportedModel:
    """Write the checkpoint `out` from the Hugging Face directory `directory`, tokenizer included.

    Args:
        family: family to convert to; None: the family of `model_type`.
        positions: maximum L, for a family that can be extended.
        trust_pickle: without a safetensors file, read a pickle with `weights_only=True`.

    Raises:
        DataError: a file is missing or damaged, weights are a pickle, or the model is unknown.
        UsageError: the model cannot be converted to `family`.
    """
    imported = read_directory(
        directory, family=family, positions=positions, trust_pickle=trust_pickle
    )
    load = load_model if imported.task is None else load_backbone
    load(imported.model, imported.state)  # checks shapes and missing parameters
    pieces = tokenizer.load(directory)
    if pieces.vocab_size > imported.model.vocab_size:
        raise DataError(
            f"{directory} has a tokenizer of {pieces.vocab_size:,} pieces and an embedding of "
            f"{imported.model.vocab_size:,}; use the tokenizer that the model was trained with"
        )
    check_padding(imported.heads, pieces, directory)
    model, written = imported.model, without_nulls(read_json(storage.join(directory, CONFIG)))
    if "pad_token_id" not in written and not model.computes_with_padding:
        model = model.model_copy(update={"pad_token_id": pieces.special.pad})
    checkpoint.save_weights(
        out,
        model=model,
        state=imported.state,
        tokenizer=pieces,
        heads=imported.heads,
        task=imported.task,
        untrained=imported.untrained,
    )
    checkpoint.finalize(out)
    return imported


def _pooled(imported: ImportedModel, directory: str) -> ImportedModel:
    """Return an encoder of vectors if sentence-transformers' files say so, else `imported`.

    Raises:
        DataError: they say another pooling, or layers behind it.
    """
    path = storage.join(directory, "modules.json")
    modules = json.loads(storage.read_text(path)) if storage.exists(path) else ()
    paths = {module["type"].rpartition(".")[2]: module["path"] for module in modules}
    if imported.task is not None or "Pooling" not in paths:
        return imported
    options = read_json(storage.join(directory, paths["Pooling"], CONFIG))
    modes = [mode for mode, on in options.items() if mode.startswith("pooling_mode") and on]
    mode = str(options.get("pooling_mode") or ",".join(modes)).removeprefix("pooling_mode_")
    others = paths.keys() - {"Transformer", "Pooling", "Normalize"}
    if mode not in POOLINGS or others:
        raise DataError(
            f"{path} pools by {', '.join((mode, *others))}, Cloze by the mean or the first token; "
            f"remove {path} to import the encoder alone"
        )
    lengths = storage.join(directory, "sentence_bert_config.json")
    read = read_json(lengths).get("max_seq_length") if storage.exists(lengths) else None
    most = imported.model.max_position_embeddings
    own = {key: value for key, value in imported.state.items() if key.startswith("encoder.")}
    return replace(
        imported,
        heads={EMBEDDING: {"pooling": POOLINGS[mode], "normalize": "Normalize" in paths}},
        task={"name": "imported", "max_length": min(read or most, most)},
        state=own,
        fresh=(),
        left_out=(
            *imported.left_out,
            *sorted(imported.state.keys() - own.keys() - {*imported.fresh}),
        ),
    )


def check_padding(heads: Mapping[str, Any], pieces: Tokenizer, where: str) -> None:
    """Raise DataError if a classifier by the last token cannot tell it from padding (GPT-2)."""
    if "classifier" in heads and pieces.special.sep == pieces.special.pad:
        raise DataError(
            f"{where} classifies by the last token that is not padding, but its tokenizer pads "
            f"with the end of a text; use one with a padding token"
        )


def read_directory(
    directory: str,
    *,
    family: str | None = None,
    positions: int | None = None,
    trust_pickle: bool = False,
) -> ImportedModel:
    """Return config and weights of a Hugging Face directory, under Cloze's names, in fp32.

    Arguments and errors are those of `import_directory`; shapes are not checked.
    """
    name = storage.join(directory, CONFIG)
    config = without_nulls(read_config(directory))
    hub = _hub_of_config(config, name)
    convert = None
    if family is not None and family != hub.family:
        convert = hub_of(family).converts.get(hub.family)
        if convert is None and hub_of(family).model_type != hub.model_type:
            others = [name for name in exportable() if hub.family in hub_of(name).converts]
            raise UsageError(
                f"family ({family}) is nothing that a {hub.family} model can become; choose from "
                f"{', '.join(sorted({hub.family, *others}))}"
            )
        hub = hub if convert else hub_of(family)
    generation = storage.join(directory, GENERATION)
    if hub.fixed.get("is_encoder_decoder") and storage.exists(generation):
        # transformers 5 writes some ids only there
        written = without_nulls(read_json(generation))
        config = {**{key: written[key] for key in DECODER_IDS if key in written}, **config}
    model = hub.from_config(config, name)
    head = hub.head_of(config)
    _check_class(hub, config, name)
    weights = read_weights(directory, trust_pickle)
    state = hub.from_state(weights, directory, head, model)
    if hub.fixed.get(TIED) and config.get(TIED) is False:
        _check_own_matrix(hub, config, weights, name, (model, head))
    state = hub.fill(model, config, state)
    if convert is not None:
        model, state = convert(model, state, positions or model.max_position_embeddings)
    elif positions is not None and positions != model.max_position_embeddings:
        raise UsageError(
            f"positions ({positions}) can be chosen where --family makes another model of it; "
            f"leave it out"
        )
    if head is None and "classifier.weight" not in state and "classifier.bias" not in state:
        imported = complete(model, state)
        if hub.is_causal:
            masked_lm = {**imported.heads["masked_lm"], "objectives": list(hub.objectives)}
            imported = replace(imported, heads={**imported.heads, "masked_lm": masked_lm})
    else:
        imported = _fine_tuned(model, state, head or "classifier", config, directory)
    imported = _pooled(imported, directory)
    keys = hub.keys_for(() if head is None else (head,))
    left_out = (keys.to_hf(name) or name for name in imported.left_out)
    return replace(imported, left_out=tuple(left_out))


def _check_class(hub: HubFormat, config: Mapping[str, Any], where: str) -> None:
    """Raise DataError if the config names a class of a task that the family does not have."""
    own = {*hub.architectures.values()}
    for name in config.get("architectures") or ():
        if hub.refused and name not in own and name.endswith(TASK_CLASSES):
            raise DataError(
                f"{where} has the class {name}, which Cloze's {hub.family} does not have; import "
                f"the whole pretrained model, and fine-tune it"
            )


def _check_own_matrix(
    hub: HubFormat,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    where: str,
    form: tuple[ModelConfig, str | None],
) -> None:
    """Raise DataError if a head has a matrix of its own that the weights lack."""
    names = [hub.current_name(name) for name in weights]
    has_head = any(f"{hub.keys.from_hf(name)}".startswith(("masked_lm.", "lm.")) for name in names)
    has_head |= any(name.endswith(ONLY_TIED) for name in config.get("architectures") or ())
    own = (hub.drop_of(name, *form) for name in names if "embed_tokens" not in name)
    has_own = any(drop.copy_of == hub.keys.to_hf(WORDS) for drop in own if drop)
    if has_head and not has_own:
        raise DataError(
            f"{where} has {TIED} False, but the weights lack the head's own matrix; use complete "
            f"weights, or True if it is that of the embeddings"
        )


def _fine_tuned(
    model: ModelConfig,
    state: dict[str, Tensor],
    head: str,
    config: Mapping[str, Any],
    directory: str,
) -> ImportedModel:
    """Return a fine-tuned model.

    Raises:
        DataError: the head is incomplete, or has another number of outputs than labels.
    """
    pooler = meta_pooler(model)
    biased = head not in POOLED or getattr(pooler, "head_bias", True)
    for parameter in (f"{head}.weight", *((f"{head}.bias",) if biased else ())):
        if parameter not in state:
            raise DataError(f"{directory} lacks {parameter}; use a complete Hugging Face directory")
    count = state[f"{head}.weight"].shape[0]
    pooled = (head in POOLED or hasattr(pooler, "transform")) and next(
        pooler.parameters(), None
    ) is not None
    if pooled and not any(name.startswith("pooler.") for name in state):
        raise DataError(
            f"{directory} lacks the pooler, on which its {head} stands; use a complete Hugging "
            f"Face directory"
        )
    prefixes = ("encoder.", f"{head}.", *(("pooler.",) if pooled else ()))
    used = {key: tensor for key, tensor in state.items() if key.startswith(prefixes)}
    unused = tuple(sorted(state.keys() - used.keys()))
    heads = {head: {"num_labels": count} if head in LABELLED else {}}
    task = _task(
        config, head, count, storage.join(directory, CONFIG), model.max_position_embeddings
    )
    return ImportedModel(model=model, heads=heads, task=task, state=used, left_out=unused)


def _hub_of_config(config: Mapping[str, Any], where: str) -> HubFormat:
    """Return the Hugging Face format for `model_type`, preferably one whose fixed values match, or
    one that has the class of the config.

    Args:
        where: file of the config, for messages.

    Raises:
        DataError: no family has this `model_type`.
    """
    hubs = formats()
    model_type = config.get("model_type")
    matches = [hub for hub in hubs if model_type in (hub.model_type, *hub.aliases)]
    if not matches:
        supported = ", ".join(
            sorted({name for hub in hubs for name in (hub.model_type, *hub.aliases)})
        )
        reason = UNKNOWN_TYPES.get(str(model_type), "which Cloze does not know")
        raise DataError(
            f"{where} has the model_type {model_type!r}, {reason}; use one of {supported}"
        )
    architectures = config.get("architectures") or ()

    def fits(hub: HubFormat) -> tuple[bool, bool]:
        fixed = all(
            config.get(name, value) == value for name, value in hub.fixed.items() if name != TIED
        )
        return fixed, any(name in architectures for name in hub.architectures.values())

    return max(matches, key=fits)  # the first of equal ones


def complete(model: ModelConfig, state: dict[str, Tensor]) -> ImportedModel:
    """Return a pretraining model: missing heads are initialized, those of other families dropped.

    Raises:
        DataError: `state` has only a part of a head.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        initial = new_model(model).state_dict()
    missing = {name: tensor for name, tensor in initial.items() if name not in state}
    fresh = {
        name: tensor
        for name, tensor in missing.items()
        if not name.startswith("encoder.") or name.endswith((DELTA, OUTPUT))
    }
    present = {name.split(".", 1)[0] for name in state}
    for name in sorted(fresh):
        if name.split(".", 1)[0] in present - {"encoder"}:
            raise DataError(
                f"the weights lack {name}, a part of what is there; use a complete Hugging Face "
                f"directory"
            )
    unused = {name for name in state if name not in initial and not name.startswith("encoder.")}
    used = {name: tensor for name, tensor in state.items() if name not in unused}
    return ImportedModel(
        model=model,
        heads=model.heads,
        task=None,
        state={**used, **fresh},
        fresh=tuple(sorted(fresh)),
        left_out=tuple(sorted(unused)),
    )


def _task(
    config: Mapping[str, Any], head: str, count: int, where: str, longest: int
) -> dict[str, Any]:
    """Return the task that Cloze's export recorded, or else the general task of the head's kind."""
    if TASK in config:
        return dict(config[TASK])
    task: dict[str, Any] = {"name": _TASKS[head], "max_length": longest}
    if head == "classifier" and count == 1:
        return {**task, "name": "regression"}
    problem = config.get("problem_type")
    if head == "classifier" and problem == MULTI_LABEL:
        task |= {"name": "multilabel", "problem_type": problem}
    elif head == "classifier" and problem not in (None, "single_label_classification"):
        # Several numbers per text: no such task exists, but the encoder can be used.
        task["name"] = "imported"
    if head not in LABELLED:
        return task
    names = config.get("id2label") or {str(number): f"LABEL_{number}" for number in range(count)}
    if sorted(names) != sorted(str(number) for number in range(count)):
        raise DataError(
            f"{where} has id2label for {', '.join(map(str, names))}, the classifier has {count} "
            f"labels, 0 to {count - 1}; correct id2label"
        )
    labels = [str(names[str(number)]) for number in range(count)]
    twice = [label for label, uses in Counter(labels).items() if uses > 1]
    if twice:
        raise DataError(
            f"{where} gives the name {twice[0]!r} to several labels in id2label; correct id2label"
        )
    if head == "token_classifier" and not all(map(ENTITY_TAG.fullmatch, labels)):
        task["options"] = {"scheme": "joined"}
    return {**task, "labels": labels}
