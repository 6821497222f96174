"""AdamW (Loshchilov and Hutter, 2019), with the bias correction that BERT's Adam lacks."""

from __future__ import annotations

from typing import Any

import torch

from cloze.model.train.loop.interfaces import TrainingHyperparameters
from cloze.model.train.optimizers import OptimizerSpec


def adamw(groups: list[dict[str, Any]], recipe: TrainingHyperparameters) -> torch.optim.Optimizer:
    """Build torch's fused AdamW."""
    return torch.optim.AdamW(
        groups,
        lr=recipe.learning_rate,
        betas=recipe.betas,
        eps=recipe.eps,
        weight_decay=recipe.weight_decay,
        fused=True,
    )


OPTIMIZER = OptimizerSpec(build=adamw, state=("exp_avg", "exp_avg_sq"))
