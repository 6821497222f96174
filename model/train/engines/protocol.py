"""What an engine does for the loop.

The rest of the trainer relies on this: gradients are *sums* over ranks and micro-batches of losses that are already divided by
global counts; a step whose gradient is not finite changes nothing; weights and optimizer state are written in parts, a rank's each,
and read back by parameter, with any engine and on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from torch import Tensor

from model.tensors import Slice, Tensors
from model.train.engines.loss_scale import LossScale


class Engine(Protocol):
    """What is trained and its optimizer. Every rank has one and calls all of it, in the same order.

    Attributes:
        scale: of the loss, with precision fp16; None: it is not scaled.
    """

    @property
    def scale(self) -> LossScale | None: ...

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

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Those parameters and buffers by name that this rank writes of a checkpoint: all ranks' together are all there are.

        Each is whole, on whatever device, and valid until the next one is asked for or the next step runs. Every rank goes through all.
        """
        ...

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Put back what `weights` gave, of any engine on any number of ranks, before the first step or after any other.

        Args:
            weights: all of them, the same on every rank; each is asked for once.

        Raises:
            DataError: they are not those of the model.
        """
        ...

    def optimizer_state(self) -> Iterator[Slice]:
        """What this rank writes of the optimizer's state, under the names `<parameter>/<state>`: all ranks' together are all of it.

        Views of it, valid until the next step runs. None before the first update.
        """
        ...

    def load_optimizer_state(self, state: Tensors, updates: int) -> None:
        """Put back what `optimizer_state` gave, of any engine on any number of ranks, before the first step or after any other.

        Args:
            state: all of it; a rank asks for what it holds alone.
            updates: optimizer steps that were applied so far.
        """
        ...
