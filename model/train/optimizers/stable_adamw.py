"""StableAdamW: AdamW with AdaFactor's update clipping.

Sources: Wortsman et al., "Stable and low-precision training for large-scale vision-language
models", 2023, Algorithm 2; Shazeer and Stern, "Adafactor", 2018, section 6. A gradient much larger
than the second moment so far would move the weights too far, so a parameter's learning rate is
divided by the root mean square of g / sqrt(v) if that exceeds 1. The paper's self-correcting
running averages equal Adam's with bias correction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cloze.model.train.optimizers import OptimizerSpec
from cloze.model.train.optimizers.tensorwise import ParameterView, TensorwiseAdam


class StableAdamW(TensorwiseAdam):
    """Adam with the scale 1 / max(1, sqrt(mean(g² / max(v / (1 - b2^t), eps²))))."""

    columns = 1

    def summands(
        self,
        group: dict[str, Any],
        parts: Sequence[ParameterView],
        roots: Sequence[Tensor],
        updates: Sequence[Tensor],
    ) -> list[list[Tensor]]:
        expected = torch._foreach_clamp_min(list(roots), group["eps"])
        return [list(torch._foreach_div([part.gradient for part in parts], expected))]

    def scales(self, sums: Tensor, sizes: Tensor) -> Tensor:
        return (sums[:, 0] / sizes).sqrt().clamp(min=1.0).reciprocal()


OPTIMIZER = OptimizerSpec(build=StableAdamW, state=("exp_avg", "exp_avg_sq"), scope="tensors")
