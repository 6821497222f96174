"""Adam with decoupled weight decay (Loshchilov and Hutter, 2019). BERT's own leaves out the bias correction."""

from __future__ import annotations

from typing import Any

import torch

from model.train.interfaces import Recipe
from model.train.optimizers import OptimizerKind


def adamw(groups: list[dict[str, Any]], recipe: Recipe) -> torch.optim.Optimizer:
    """torch's fused AdamW."""
    return torch.optim.AdamW(
        groups, lr=recipe.learning_rate, betas=recipe.betas, eps=recipe.eps, weight_decay=recipe.weight_decay, fused=True
    )


OPTIMIZER = OptimizerKind(build=adamw, state=("exp_avg", "exp_avg_sq"))
