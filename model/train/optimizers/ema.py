"""The exponential moving average of weights, and its decay at each step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Early steps forget the random initialization: decay at most (1 + step) / (10 + step), as in
# TensorFlow's ExponentialMovingAverage.
EMA_WARMUP = 10.0


def ema_decay_at(decay: float, step: int) -> float:
    """Return the decay at step `step`, counted from 0 over all phases."""
    return min(decay, (1.0 + step) / (EMA_WARMUP + step))


class WeightEMA:
    """The exponential moving average (EMA) of a rank's tensors: all weights, or its shard of them.

    After each update the average moves toward the weights by 1 - decay (Polyak and Juditsky, 1992;
    compare Izmailov et al., 2018). It draws no random number and touches no weight, so training is
    the same with and without EMA.

    Attributes:
        values: fp32 averages, one per tensor.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self.values = [tensor.detach().float().clone() for tensor in tensors]

    @torch.no_grad()
    def reset(self) -> None:
        """Restart from the current tensors."""
        for value, tensor in zip(self.values, self._tensors, strict=True):
            value.copy_(tensor)

    @torch.no_grad()
    def update(self, decay: float, applied: Tensor | None = None) -> None:
        """Move the averages toward the tensors.

        Args:
            applied: scalar on the device, 0 if the step changed no weight and the average must not
                move; None: the step was applied.
        """
        weight = 1.0 - decay
        for value, tensor in zip(self.values, self._tensors, strict=True):
            value.lerp_(tensor.detach(), weight if applied is None else weight * applied)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange averages and tensors."""
        for value, tensor in zip(self.values, self._tensors, strict=True):
            # Values change places, not tensors: engine and optimizer hold these by reference.
            old_weights = tensor.detach().clone()
            tensor.copy_(value)
            value.copy_(old_weights)
