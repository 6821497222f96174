"""The table of model families: who builds the family's pretraining model, and the class of its config.

A family is one file that says how it differs: `build(config)` gives a module with the attributes `encoder` and `pooler`
(which may be None) that maps a batch to a dict of outputs, and `pooler(config)` what fine-tuning puts between encoder and
classifier. This module imports no torch, so that configs can be checked without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from pipeline.core.errors import DataError, UsageError, did_you_mean
from pipeline.core.registry import load

if TYPE_CHECKING:
    from torch import Tensor, nn

    from model.families.config import ModelConfig
    from model.families.pretraining import PretrainingModel


class Family(NamedTuple):
    """A row of the table: names, `module:attribute`, that are imported when they are needed."""

    module: str  # holds `build` and `pooler`
    config: str = "model.families.config:ModelConfig"


FAMILIES: dict[str, Family] = {
    "bert": Family("model.families.bert.model"),
    "megatron-bert": Family("model.families.megatron_bert.model"),
    "roberta": Family("model.families.roberta.model", "model.families.roberta.config:RobertaConfig"),
    "albert": Family("model.families.albert.model", "model.families.albert.config:AlbertConfig"),
    "electra": Family("model.families.electra.model", "model.families.electra.config:ElectraConfig"),
    "distilbert": Family("model.families.distilbert.model", "model.families.distilbert.config:DistilBertConfig"),
    "ltr": Family("model.families.ltr.model", "model.families.ltr.config:LtrConfig"),
    "spanbert": Family("model.families.spanbert.model", "model.families.spanbert.config:SpanBertConfig"),
    "modern": Family("model.families.modern.model", "model.families.modern.config:ModernConfig"),
    "longformer": Family("model.families.longformer.model", "model.families.longformer.config:LongformerConfig"),
}


class Backbone(NamedTuple):
    """What fine-tuning keeps of a pretrained model: hidden states from ids, and one vector a sequence from hidden states."""

    encoder: nn.Module
    pooler: nn.Module


def config_class(family: str) -> type[ModelConfig]:
    """The class of a family's configs."""
    found: type[ModelConfig] = load(FAMILIES[family].config)
    return found


def build(config: ModelConfig) -> PretrainingModel:
    """The pretraining model of `config`, freshly initialised from torch's current random state, in fp32.

    Raises:
        UsageError: `vocab_size` is still 0, or the family is unknown.
    """
    if config.vocab_size == 0:
        raise UsageError("vocab_size (0) is still open; set it, or take it from a dataset with for_dataset")
    if config.family not in FAMILIES:
        raise UsageError(f"family ({config.family!r}) is unknown; {did_you_mean(config.family, FAMILIES)}")
    model: PretrainingModel = load(f"{FAMILIES[config.family].module}:build")(config)
    return model


def restore(config: ModelConfig, state: Mapping[str, Tensor]) -> PretrainingModel:
    """The pretraining model of `config` with the weights of `state`, in evaluation mode.

    Args:
        state: our parameter names to tensors; the model takes the tensors themselves, no copies.

    Raises:
        DataError: a parameter is missing, left over, or has another shape; the message names the first one.
    """
    import torch

    with torch.device("meta"):  # everything is replaced, so nothing needs a first value
        model = build(config)
    _check(config, model.state_dict(), state)
    model.load_state_dict(dict(state), assign=True)
    return model.eval()


def new_backbone(config: ModelConfig) -> Backbone:
    """Encoder and pooler, freshly initialised from torch's current random state."""
    from model.layers.heads import initialize

    model = build(config)
    pooler = model.pooler
    if pooler is None:
        pooler = load(f"{FAMILIES[config.family].module}:pooler")(config)
        initialize(pooler, config.initializer_range)
    return Backbone(encoder=model.encoder, pooler=pooler)


def restore_backbone(config: ModelConfig, state: Mapping[str, Tensor]) -> Backbone:
    """Encoder and pooler with the weights of `state`, in evaluation mode; whatever heads `state` holds are not looked at.

    The pooler of a family that has none in pretraining is freshly initialised where `state` does not hold one.

    Raises:
        DataError: as for `restore`.
    """
    backbone = new_backbone(config)
    pooled = any(name.startswith("pooler.") for name in state) or "pair" in config.heads
    for prefix, part in (("encoder.", backbone.encoder), ("pooler.", backbone.pooler)):
        if prefix == "pooler." and not pooled:
            continue
        given = {name: tensor for name, tensor in state.items() if name.startswith(prefix)}
        _check(config, {prefix + name: tensor for name, tensor in part.state_dict().items()}, given)
        part.load_state_dict({name.removeprefix(prefix): tensor for name, tensor in given.items()}, assign=True)
        part.eval()
    return backbone


def _check(config: ModelConfig, wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    for name in sorted(wanted.keys() ^ given.keys()):
        fault = "lack" if name in wanted else "do not fit the model: they hold"
        raise DataError(f"the weights {fault} {name}; use a checkpoint of a {config.family} model with the same heads")
    for name, tensor in sorted(given.items()):
        if tensor.shape != wanted[name].shape:
            shapes = f"{tuple(tensor.shape)}, the config says {tuple(wanted[name].shape)}"
            raise DataError(f"{name} has the shape {shapes}; use the checkpoint's own config")


def is_backbone(name: str) -> bool:
    """Whether the parameter `name` belongs to what fine-tuning keeps: the encoder and the pooler."""
    return name.startswith(("encoder.", "pooler."))
