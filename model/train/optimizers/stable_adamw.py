"""StableAdamW: AdamW with AdaFactor's update clipping (Wortsman et al., "Stable and low-precision training for large-scale
vision-language models", 2023, Algorithm 2; Shazeer and Stern, "Adafactor", 2018, section 6).

A gradient that is much larger than the second moment has seen until now would move the weights too far: by the root of the mean of
g² / v over a parameter, where that is above 1, its learning rate is divided. The paper's running averages that correct themselves
are Adam's with the bias correction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from model.train.optimizers import OptimizerKind
from model.train.optimizers.tensorwise import Part, TensorwiseAdam


class StableAdamW(TensorwiseAdam):
    """Every parameter's scale, vectors' too, is 1 / max(1, sqrt(mean(g² / max(v / (1 - b2^t), eps²))))."""

    columns = 1

    def summands(
        self, group: dict[str, Any], parts: Sequence[Part], roots: Sequence[Tensor], updates: Sequence[Tensor]
    ) -> list[list[Tensor]]:
        expected = torch._foreach_clamp_min(list(roots), group["eps"])
        return [list(torch._foreach_div([part.gradient for part in parts], expected))]

    def scales(self, sums: Tensor, sizes: Tensor) -> Tensor:
        return (sums[:, 0] / sizes).sqrt().clamp(min=1.0).reciprocal()


OPTIMIZER = OptimizerKind(build=StableAdamW, state=("exp_avg", "exp_avg_sq"), sees="tensors")
