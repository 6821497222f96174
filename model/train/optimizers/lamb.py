"""LAMB (You et al., "Large Batch Optimization for Deep Learning", 2020, Algorithm 2).

The paper's variant: with Adam's bias correction, and an unbounded weight norm (φ is the identity).
As in google-research/albert, lamb_optimizer.py (which lacks bias correction), biases and norms have
neither weight decay nor a trust ratio. A ratio is 1 if weights or update are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cloze.model.train.optimizers import OptimizerSpec
from cloze.model.train.optimizers.tensorwise import ParameterView, TensorwiseAdam


class Lamb(TensorwiseAdam):
    """Adam with matrices scaled by the trust ratio: norm of weights / norm of update."""

    columns = 2

    def scaled(self, group: dict[str, Any]) -> bool:
        return bool(group["matrices"])

    def summands(
        self,
        group: dict[str, Any],
        parts: Sequence[ParameterView],
        roots: Sequence[Tensor],
        updates: Sequence[Tensor],
    ) -> list[list[Tensor]]:
        return [[part.weight for part in parts], list(updates)]

    def scales(self, sums: Tensor, sizes: Tensor) -> Tensor:
        weights, updates = sums.sqrt().unbind(dim=1)
        return torch.where((weights > 0) & (updates > 0), weights / updates, 1.0)


OPTIMIZER = OptimizerSpec(build=Lamb, state=("exp_avg", "exp_avg_sq"), scope="tensors")
