"""The table of optimizers: how one is built, and which of its state a checkpoint holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from model.train.config import PretrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One row of the table.

    Attributes:
        build: parameter groups and config to the optimizer.
        state: the names of its state tensors that have the parameter's shape; a scalar `step` comes beside them.
        elementwise: whether each number of a parameter is updated by itself. ZeRO 1 to 3 cut flattened parameters at any
            place, so an optimizer that looks at whole matrices (LAMB, Muon) would be silently wrong there.
    """

    build: Callable[[list[dict[str, Any]], PretrainConfig], torch.optim.Optimizer]
    state: tuple[str, ...]
    elementwise: bool = True


def adamw(groups: list[dict[str, Any]], config: PretrainConfig) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019). BERT's own leaves out the bias correction."""
    return torch.optim.AdamW(
        groups, lr=config.peak_learning_rate, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, fused=True
    )


OPTIMIZERS: dict[str, Recipe] = {"adamw": Recipe(build=adamw, state=("exp_avg", "exp_avg_sq"))}


def clip(module: nn.Module, largest: float) -> float:
    """Scale the gradient down to the norm `largest`, if it is longer (0: never); returns what its norm was."""
    parameters = [parameter for parameter in module.parameters() if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    found = float(norm)
    if 0 < largest < found:  # most steps of a trained model need none: a pass over all gradients less
        torch.nn.utils.clip_grads_with_norm_(parameters, largest, norm)
    return found


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weight decay on matrices alone, not on biases and norms (google-research/bert, optimization.py)."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
