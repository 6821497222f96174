"""Dynamic loss scaling for fp16, whose smallest number is 6e-8: the loss is multiplied, and the gradient divided, by a power of two.

The rule is that of Micikevicius et al., "Mixed Precision Training", 2018, section 3.2, with the numbers of `torch.amp.GradScaler`: a
step whose gradient overflows changes no weight and halves the scale; after so many steps in a row without one it doubles. At every
engine it is the same, so a checkpoint of one goes on with another.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FIRST = 2.0**16
LEAST = 1.0  # a gradient that is not finite even so did not overflow: something is wrong
GROWTH_STEPS = 2000


class LossScale:
    """The scale, on the device: nobody waits for it.

    Attributes:
        value: fp32 scalar; that of the next step, and never changed in place.
    """

    def __init__(self, device: torch.device) -> None:
        self.value = torch.tensor(FIRST, device=device)
        self._good = torch.tensor(0.0, device=device)  # steps since it changed

    def update(self, norm: Tensor) -> None:
        """After a step. Args: norm: the gradient's, a scalar."""
        finite = torch.isfinite(norm).to(self.value.device)
        good = torch.where(finite, self._good + 1, 0.0)
        grows = good >= GROWTH_STEPS
        self.value = torch.where(finite, self.value * torch.where(grows, 2.0, 1.0), (self.value / 2).clamp(min=LEAST))
        self._good = torch.where(grows, 0.0, good)

    def state(self) -> list[float]:
        """What a checkpoint keeps of it."""
        return [float(self.value), float(self._good)]

    def restore(self, state: Sequence[float]) -> None:
        """Put back what `state` gave; nothing of a training that had none."""
        if state:
            value, good = state
            self.value, self._good = torch.full_like(self.value, value), torch.full_like(self._good, good)
