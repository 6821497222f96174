"""LAMB (You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", 2020, Algorithm 2).

The paper's variant: with Adam's bias correction, and the norm of the weights as it is (no bounds: its φ is the identity). As in
google-research/albert, lamb_optimizer.py, which leaves the bias correction out, biases and norms have neither weight decay nor a trust
ratio, and a ratio is 1 where weights or update are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from model.train.optimizers import OptimizerKind
from model.train.optimizers.tensorwise import Part, TensorwiseAdam


class Lamb(TensorwiseAdam):
    """A matrix's or a table's scale is its trust ratio, the norm of its weights beside that of its update."""

    columns = 2

    def scaled(self, group: dict[str, Any]) -> bool:
        return bool(group["matrices"])

    def summands(
        self, group: dict[str, Any], parts: Sequence[Part], roots: Sequence[Tensor], updates: Sequence[Tensor]
    ) -> list[list[Tensor]]:
        return [[part.weight for part in parts], list(updates)]

    def scales(self, sums: Tensor, sizes: Tensor) -> Tensor:
        weights, updates = sums.sqrt().unbind(dim=1)
        return torch.where((weights > 0) & (updates > 0), weights / updates, 1.0)


OPTIMIZER = OptimizerKind(build=Lamb, state=("exp_avg", "exp_avg_sq"), sees="tensors")
