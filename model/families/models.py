"""Models of any family: new ones, and ones with weights that are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from model.families.config import ModelConfig
from model.families.pretraining import PretrainingModel
from model.families.table import part
from model.layers.heads import initialize
from model.layers.moved import merged
from pipeline.core.errors import DataError, UsageError


class Transform(Protocol):
    """A pooler whose layers stand before heads on every position, too."""

    def transform(self, hidden: Tensor) -> Tensor:
        """Float [..., D] to float [..., D]."""
        ...


class Backbone(NamedTuple):
    """What fine-tuning keeps of a pretrained model: hidden states from ids, and one vector a sequence from hidden states."""

    encoder: nn.Module
    pooler: nn.Module

    @property
    def transforms(self) -> bool:
        """Whether the pooler is a `Transform`: heads on every position then read what it makes of their states."""
        return hasattr(self.pooler, "transform")


def new_model(config: ModelConfig) -> PretrainingModel:
    """The pretraining model of `config`, freshly initialised from torch's current random state, in fp32.

    Raises:
        UsageError: `vocab_size` is still 0, or the family is unknown.
    """
    if config.vocab_size == 0:
        raise UsageError("vocab_size (0) is still open; set it, or take it from a dataset with for_dataset")
    model: PretrainingModel = part(config.family, "model:new_model")(config)
    return model


def restore(config: ModelConfig, state: Mapping[str, Tensor]) -> PretrainingModel:
    """The pretraining model of `config` with the weights of `state`, in evaluation mode.

    Args:
        state: our parameter names to tensors; the model takes the tensors themselves, no copies.

    Raises:
        DataError: a parameter is missing, left over, or has another shape; the message names the first one.
    """
    model = _without_weights(config)  # everything is replaced, so nothing needs a first value
    _check(config, model.state_dict(), state)
    model.load_state_dict(dict(state), assign=True)
    return model.eval()


def new_backbone(config: ModelConfig) -> Backbone:
    """Encoder and pooler, freshly initialised from torch's current random state."""
    model = new_model(config.backbone)
    pooler = model.pooler
    if pooler is None:
        pooler = part(config.family, "model:new_pooler")(config)
        initialize(pooler, config.initializer_range)
    return Backbone(encoder=model.encoder, pooler=pooler)


def restore_backbone(config: ModelConfig, state: Mapping[str, Tensor]) -> Backbone:
    """Encoder and pooler with the weights of `state`, in evaluation mode; whatever heads `state` holds are not looked at.

    The pooler of a family that has none in pretraining is freshly initialised where `state` does not hold one.

    Raises:
        DataError: as for `restore`.
    """
    backbone, state = new_backbone(config), merged(state)
    pooled = any(name.startswith(("pooler.", "pair.")) for name in state)
    for prefix, module in (("encoder.", backbone.encoder), ("pooler.", backbone.pooler)):
        if prefix == "pooler." and not pooled:
            continue
        given = {name: tensor for name, tensor in state.items() if name.startswith(prefix)}
        _check(config, {prefix + name: tensor for name, tensor in module.state_dict().items()}, given)
        module.load_state_dict({name.removeprefix(prefix): tensor for name, tensor in given.items()}, assign=True)
        module.eval()
    return backbone


def bare_pooler(config: ModelConfig) -> nn.Module:
    """What gives a model of `config` one vector a sequence in fine-tuning, with parameters that have a shape and no memory."""
    with torch.device("meta"):
        pooler: nn.Module = part(config.family, "model:new_pooler")(config)
    return pooler


def is_backbone(name: str) -> bool:
    """Whether the parameter `name` belongs to what fine-tuning keeps: the encoder and the pooler."""
    return name.startswith(("encoder.", "pooler."))


def first_weights(student: ModelConfig, teacher: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a student, of a family that learns from a teacher, takes over from the teacher's `state` before its first step."""
    taken: dict[str, Tensor] = part(student.family, "model:first_weights")(student, teacher, merged(state))
    return taken


def per_piece(config: ModelConfig) -> tuple[str, ...]:
    """The parameters that have a row for each piece of the vocabulary, as the layers say of themselves: what grows with it."""
    modules = _without_weights(config).named_modules()
    return tuple(f"{prefix}.{name}" for prefix, module in modules for name in getattr(module, "per_piece", ()))


def _without_weights(config: ModelConfig) -> PretrainingModel:
    """The model with parameters that have a shape and no memory."""
    with torch.device("meta"):
        return new_model(config)


def _check(config: ModelConfig, wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    for name in sorted(wanted.keys() ^ given.keys()):
        fault = "lack" if name in wanted else "do not fit the model: they hold"
        raise DataError(f"the weights {fault} {name}; use a checkpoint of a {config.family} model with the same heads")
    for name, tensor in sorted(given.items()):
        if tensor.shape != wanted[name].shape:
            shapes = f"{tuple(tensor.shape)}, the config says {tuple(wanted[name].shape)}"
            raise DataError(f"{name} has the shape {shapes}; use the checkpoint's own config")
