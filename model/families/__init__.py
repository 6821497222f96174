"""The table of model families: a name, and the function that builds the family's pretraining model.

A family is one file: `build(config) -> PretrainingModel`, where the model has the attributes `encoder` and `pooler` and
maps a batch to a dict of outputs. This module itself imports no torch, so that configs can be checked without it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.errors import DataError, UsageError, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

    from model.config import ModelConfig
    from model.families.bert import PretrainingModel

FAMILIES: dict[str, str] = {
    "bert": "model.families.bert:build",
    "megatron-bert": "model.families.megatron_bert:build",
}


def build(config: ModelConfig) -> PretrainingModel:
    """The pretraining model of `config`, freshly initialised from torch's current random state, in fp32.

    Raises:
        UsageError: `vocab_size` is still 0, or the family is unknown.
    """
    if config.vocab_size == 0:
        raise UsageError("vocab_size (0) is still open; set it, or take it from a dataset with for_dataset")
    if config.family not in FAMILIES:
        raise UsageError(f"family ({config.family!r}) is unknown; {did_you_mean(config.family, FAMILIES)}")
    module, _, name = FAMILIES[config.family].partition(":")
    model: PretrainingModel = getattr(importlib.import_module(module), name)(config)
    return model


def restore(config: ModelConfig, state: Mapping[str, Tensor], *, heads: bool = True) -> PretrainingModel:
    """The pretraining model of `config` with the weights of `state`, in evaluation mode.

    Args:
        state: our parameter names to tensors; the model takes the tensors themselves, no copies.
        heads: false takes the encoder and the pooler alone (of a fine-tuned checkpoint, say), leaves the pretraining
            heads freshly initialised, and ignores whatever other heads `state` holds.

    Raises:
        DataError: a parameter is missing, left over, or has another shape; the message names the first one.
    """
    import torch

    with torch.device("meta" if heads else "cpu"):  # where everything is replaced, nothing needs a first value
        model = build(config)
    wanted = {name: tensor for name, tensor in model.state_dict().items() if heads or is_backbone(name)}
    given = {name: tensor for name, tensor in state.items() if heads or is_backbone(name)}
    for name in sorted(wanted.keys() ^ given.keys()):
        fault = "lack" if name in wanted else "do not fit the model: they hold"
        raise DataError(f"the weights {fault} {name}; use a checkpoint of a {config.family} model with the same heads")
    for name, tensor in sorted(given.items()):
        if tensor.shape != wanted[name].shape:
            shapes = f"{tuple(tensor.shape)}, the config says {tuple(wanted[name].shape)}"
            raise DataError(f"{name} has the shape {shapes}; use the checkpoint's own config")
    model.load_state_dict(given, strict=heads, assign=True)
    return model.eval()


def is_backbone(name: str) -> bool:
    """Whether the parameter `name` belongs to what fine-tuning keeps: the encoder and the pooler."""
    return name.startswith(("encoder.", "pooler."))
