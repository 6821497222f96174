"""Models without some of their attention heads or weights, which pruning leaves.

Weights are named as in a checkpoint. Layers are counted from 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from cloze.model.families.config import ModelConfig

Config = TypeVar("Config", bound=ModelConfig)
Weights = dict[str, Tensor]
HEADS = re.compile(r"encoder\.layers\.(\d+)\.attention\.(query|key|value|qkv|output)\.(\w+)")


def is_layer_matrix(name: str, tensor: Tensor) -> bool:
    """Return True for the weight matrices of an encoder's layers, which `sparsity` thins out."""
    # ALBERT's layers are in groups; XLNet's vectors of segments are a table.
    in_layer = name.startswith("encoder.") and (".layers." in name or ".groups." in name)
    return in_layer and tensor.dim() == 2 and ".segment." not in name


def with_all_heads(config: Config, state: Mapping[str, Tensor]) -> tuple[Config, Weights]:
    """Return an equivalent model with `num_attention_heads` heads in every layer.

    The added heads are zero, so they add nothing to the output.
    """
    if not config.heads_by_layer:
        return config, dict(state)
    width = config.num_attention_heads * config.head_size

    def widened(layer: int, blocks: Tensor, dimension: int) -> Tensor:
        shape = list(blocks.shape)
        shape[dimension] = width - shape[dimension]
        return torch.cat([blocks, blocks.new_zeros(shape)], dim=dimension)

    return config.model_copy(update={"heads_by_layer": ()}), over_heads(state, widened)


def over_heads(
    state: Mapping[str, Tensor], change: Callable[[int, Tensor, int], Tensor]
) -> Weights:
    """Apply `change(layer, tensor, dimension)` along the heads' dimension of attention weights."""
    changed = dict(state)
    for name, tensor in state.items():
        match = HEADS.fullmatch(name)
        if match is None or match.groups()[1:] == ("output", "bias"):
            continue
        layer, kind = int(match[1]), match[2]
        if kind == "output":
            changed[name] = change(layer, tensor, 1)
        elif kind == "qkv":  # query, key and value, one below the other
            blocks = torch.unflatten(tensor, 0, (3, -1))
            changed[name] = change(layer, blocks, 1).flatten(0, 1)
        else:
            changed[name] = change(layer, tensor, 0)
    return changed
