"""Models without some of their layers or attention heads: config and weights.

Weights are named as in a checkpoint. Layers and heads are counted from 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cloze.core.config import parse_config
from cloze.core.errors import UsageError
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import new_backbone
from cloze.model.families.pruned import Config, Weights, over_heads

LAYER = re.compile(r"encoder\.layers\.(\d+)\.(.*)")


def keep_layers(
    config: Config, state: Mapping[str, Tensor], layers: Sequence[int]
) -> tuple[Config, Weights]:
    """Return config and weights with these layers only.

    Args:
        layers: layers to keep, ascending.

    Raises:
        UsageError: the layers share weights, differ in structure, or belong to a model with a
            decoder or generator.
    """
    if config.is_encoder_decoder:
        raise UsageError(
            f"layers of {config.family} models have a decoder's above them and cannot be dropped; "
            f"use another model"
        )
    if any(name.startswith("generator.") for name in state):
        raise UsageError(
            f"layers of a pretrained {config.family} model cannot be dropped, as its generator has "
            f"as many; fine-tune it first"
        )
    changes = {
        "num_hidden_layers": len(layers),
        "heads_by_layer": tuple(map(config.heads_of, layers)) if config.heads_by_layer else (),
    }
    smaller = parse_config(type(config), {**config.model_dump(), **changes}, "model")
    kept, weights = {}, [dict[str, Tensor]() for _ in range(config.num_hidden_layers)]
    for name, tensor in state.items():
        match = LAYER.fullmatch(name)
        if match is None:
            kept[name] = tensor
        else:
            weights[int(match[1])][match[2]] = tensor
    if not any(weights):
        raise UsageError(
            f"layers of this {config.family} model share weights and cannot be dropped; use "
            f"another model"
        )
    with torch.device("meta"):
        encoder, whole = (new_backbone(model).encoder for model in (smaller, config))

    def structure(model: ModelConfig, encoder: nn.Module, layer: int) -> list[Any]:
        module = encoder.get_submodule(f"layers.{layer}")
        residual = getattr(module, "residual", None)  # LSTMs' layers have it, but not the first
        return [model.window_of(layer), residual, sorted(module.state_dict())]

    for position, layer in enumerate(layers):
        if structure(smaller, encoder, position) != structure(config, whole, layer):
            raise UsageError(
                f"layer {layer} of this {config.family} model cannot become layer {position}, "
                f"whose structure differs; keep other layers"
            )
        for name, tensor in weights[layer].items():
            kept[f"encoder.layers.{position}.{name}"] = tensor
    return smaller, kept


def keep_heads(
    config: Config, state: Mapping[str, Tensor], heads: Sequence[Sequence[int]]
) -> tuple[Config, Weights]:
    """Return config and weights with these attention heads only.

    Args:
        heads: heads to keep in each layer, ascending, at least one.

    Raises:
        UsageError: the family's layers cannot differ in their heads.
    """
    if not config.supports_pruned_heads:
        raise UsageError(
            f"attention heads of {config.family} models cannot be removed; use --keep-layers or "
            f"--sparsity, or another model"
        )
    counts = [len(kept) for kept in heads]
    whole = all(count == config.num_attention_heads for count in counts)
    smaller = config.model_copy(update={"heads_by_layer": () if whole else tuple(counts)})
    rows = [
        torch.cat([torch.arange(config.head_size) + head * config.head_size for head in kept])
        for kept in heads
    ]

    def selected(layer: int, blocks: Tensor, dimension: int) -> Tensor:
        return blocks.index_select(dimension, rows[layer].to(blocks.device))

    return smaller, over_heads(state, selected)
