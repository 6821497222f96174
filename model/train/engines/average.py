"""The exponential average of the weights that are trained, in fp32 beside them.

After each update the average moves toward the weights by 1 - decay (Polyak and Juditsky, 1992; Izmailov et al., 2018, average likewise).
It draws no random number and touches no weight, so training is the same with and without.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

WARMUP = 10.0  # early steps forget the random beginning: decay at most (1 + step) / (10 + step), as TensorFlow's ExponentialMovingAverage


def decay_at(decay: float, step: int) -> float:
    """What of the average stays at step `step`, from 0 over all phases."""
    return min(decay, (1.0 + step) / (WARMUP + step))


class Average:
    """Of tensors, which are what a rank holds: all weights, or its part of them.

    Attributes:
        values: the averages, one a tensor.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self.values = [tensor.detach().float().clone() for tensor in tensors]

    @torch.no_grad()
    def begin(self) -> None:
        """Begin anew from the tensors as they are."""
        for value, tensor in zip(self.values, self._tensors, strict=True):
            value.copy_(tensor)

    @torch.no_grad()
    def move(self, decay: float, applied: Tensor | None = None) -> None:
        """Move toward the tensors.

        Args:
            applied: a scalar on the device, 0 where the step changed nothing and the average shall not either; None: it did.
        """
        weight = 1.0 - decay
        for value, tensor in zip(self.values, self._tensors, strict=True):
            value.lerp_(tensor.detach(), weight if applied is None else weight * applied)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange averages and tensors."""
        for value, tensor in zip(self.values, self._tensors, strict=True):
            before = tensor.detach().clone()
            tensor.copy_(value)
            value.copy_(before)
