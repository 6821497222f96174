"""The interface between engines and the training loop.

The trainer relies on these rules. Gradients are *sums*, over ranks and micro-batches, of losses
that are divided by global counts. A step with a non-finite gradient changes nothing. Ranks write
shards of weights and optimizer state, which any engine on any number of ranks can read by
parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from torch import Tensor

from cloze.model.layers.batch import Batch
from cloze.model.tensors import LazyTensors, TensorSlice
from cloze.model.train.device_scalars import LossScale


class Engine(Protocol):
    """The trained module with its optimizer. Every rank calls all methods, in the same order.

    Attributes:
        loss_scaler: loss scale for precision fp16; None: no scaling.
    """

    @property
    def loss_scaler(self) -> LossScale | None: ...

    def backward(self, batch: Batch, counts: Tensor, *, last: bool) -> Tensor:
        """Run forward and backward for a micro-batch, adding to the step's gradient.

        Args:
            batch: on the engine's device.
            counts: counts of the whole step; see `TrainModule.forward`.
            last: True for the step's last micro-batch, after which ranks reduce gradients.

        Returns:
            The metrics of `TrainModule.forward`.
        """
        ...

    def step(self, learning_rate: float, step: int | None = None) -> Tensor | float:
        """Update the weights by the reduced gradient if it is finite, and reset the gradient.

        Args:
            step: number of the step, from 0; see `set_learning_rate`.

        Returns:
            The gradient norm before clipping, equal on all ranks: a number if the host knows it,
            else a scalar that the device still computes. If not finite, nothing was changed.
        """
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield this rank's share of the parameters and buffers for a checkpoint, by name.

        Each tensor is whole, on any device, and valid until the next one is requested or the next
        step runs. Every rank must exhaust the iterator.
        """
        ...

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Restore weights written by any engine on any number of ranks; allowed between steps.

        Args:
            weights: all weights, the same on every rank; each is read once.

        Raises:
            DataError: the weights do not match the model.
        """
        ...

    def optimizer_state(self) -> Iterator[TensorSlice]:
        """Yield this rank's share of the optimizer state, named `<parameter>/<state>`.

        The slices are views, valid until the next step. Before the first update there are none.
        """
        ...

    def load_optimizer_state(self, state: LazyTensors, updates: int) -> None:
        """Restore optimizer state written by any engine on any number of ranks.

        Allowed before the first step or between steps.

        Args:
            state: the whole state; each rank reads only its part.
            updates: number of optimizer steps applied so far.
        """
        ...
