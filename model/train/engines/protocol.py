"""What an engine does for the loop.

The rest of the trainer relies on this: gradients are *sums* over ranks and micro-batches of losses that are already divided by
global counts; a step whose gradient is not finite changes nothing; weights and optimizer state can be read and written
whole, parameter by parameter, with any engine and on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor


class Engine(Protocol):
    """What is trained and its optimizer. Every rank has one and calls all of it, in the same order."""

    def backward(self, batch: Mapping[str, Any], counts: Tensor, *, last: bool) -> Tensor:
        """Run a micro-batch forward and backward, adding to the step's gradient.

        Args:
            batch: on the engine's device.
            counts: see `Trained.forward`; the whole step's.
            last: whether it is the step's last micro-batch, at which ranks exchange gradients.

        Returns:
            The figures of `Trained.forward`.
        """
        ...

    def step(self, learning_rate: float) -> Tensor:
        """Update the weights by the gathered gradient, unless it is not finite, and forget it.

        Returns:
            The gradient's norm before clipping, a scalar that may still be on its way on the device; where it is not finite
            nothing was changed. The same on every rank.
        """
        ...

    def weights(self) -> dict[str, Tensor]:
        """All parameters and buffers, whole, in fp32 on the CPU; empty on all ranks but the first."""
        ...

    def optimizer_state(self) -> dict[str, Tensor]:
        """`<parameter>/<state>` -> tensor of the parameter's shape, on the CPU; empty on all ranks but the first.

        Empty before the first update, too.
        """
        ...

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Put back what `weights` gave: the same whole tensors on every rank."""
        ...

    def load_optimizer_state(self, state: Mapping[str, Tensor], updates: int) -> None:
        """Put back what `optimizer_state` gave, of any engine on any number of ranks.

        Args:
            state: whole tensors, the same on every rank.
            updates: optimizer steps that were applied so far.
        """
        ...
