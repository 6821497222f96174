"""What an engine does for the loop.

The rest of the trainer relies on this: gradients are *sums* over ranks and micro-batches of losses that are already divided by
global counts; a step whose gradient is not finite changes nothing; weights and optimizer state are written in parts, a rank's each,
and read back by parameter, with any engine and on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer

from model.tensors import Slice, Tensors
from model.train.engines.loss_scale import LossScale


@dataclass(frozen=True, slots=True)
class Held:
    """Numbers of one parameter in a tensor that the optimizer of this rank updates.

    Attributes:
        tensor: the parameter itself, or a flat one that holds pieces of many.
        name: the parameter's.
        start: where they begin in the flattened tensor.
        length: how many.
    """

    tensor: Tensor
    name: str
    start: int
    length: int

    def of(self, tensor: Tensor) -> Tensor:
        """These numbers of a tensor that lies as `tensor` does, [length]; a view where it is contiguous."""
        return tensor.reshape(-1)[self.start : self.start + self.length]


class Engine(Protocol):
    """What is trained and its optimizer. Every rank has one and calls all of it, in the same order.

    Attributes:
        scale: of the loss, with precision fp16; None: it is not scaled.
    """

    @property
    def scale(self) -> LossScale | None: ...

    @property
    def optimizer(self) -> Optimizer:
        """What updates `held` in `step`; clipped gradients are there when it does."""
        ...

    @property
    def cuts(self) -> bool:
        """Whether each rank holds a part of the parameters that no other one does; else all of them hold all."""
        ...

    def held(self) -> Iterator[Held]:
        """What this rank's optimizer updates."""
        ...

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

    def average(self, decay: float) -> None:
        """Move the average of the weights toward them by 1 - decay, unless the last step changed nothing. Of a recipe with `ema` alone,
        as are the two below.
        """
        ...

    def averaged(self) -> AbstractContextManager[None]:
        """In the block, `weights` and what is run are the average; no step runs in it."""
        ...

    def load_average(self, weights: Tensors) -> None:
        """Put back what `weights` gave inside of `averaged`, after `load_weights`, which begins the average anew from the weights."""
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
