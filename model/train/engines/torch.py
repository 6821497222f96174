"""The engine of plain torch: every rank has a full replica.

`cloze.model.train.engines.protocol` documents the methods. `cloze.model.train.engines.fsdp` derives
from this engine and shards what the optimizer updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, distributed, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from cloze.model.layers.batch import Batch
from cloze.model.tensors import LazyTensors, TensorSlice, copy_into
from cloze.model.train.device_scalars import LossScale
from cloze.model.train.distributed import World
from cloze.model.train.engines.gradients import GradientReducer, own_slices, own_tensors
from cloze.model.train.optimizers import optimizer_kind
from cloze.model.train.optimizers.flat_shards import SharedOptimizer, TensorExtent
from cloze.model.train.optimizers.parameters import (
    optimizer_states,
    parameter_groups,
    trained_parameters,
)
from cloze.model.train.precision import DTYPES
from cloze.model.train.spec.engine_choice import EngineConfig
from cloze.model.train.spec.interfaces import TrainModule
from cloze.model.train.spec.train_spec import TrainingHyperparameters


class TorchEngine:
    """A single process, or data parallel processes that sum their gradients.

    Attributes, which GPU levers may replace:
        clip_gradients: scales gradients down to a limit, given their norm.
        after_update: called when weights have changed.
        graphs: runs a micro-batch in place of `forward_backward`; gradients then stay in place.
    """

    after_update: Callable[[], None] | None = None
    graphs: Callable[[Batch, Tensor], Tensor] | None = None

    # Norm of the reduced gradients, a scalar on the device.
    # A static method: an instance would pass itself in front of the gradients.
    _norm: Callable[[list[Tensor]], Tensor] = staticmethod(get_total_norm)

    def __init__(
        self,
        trained: TrainModule,
        recipe: TrainingHyperparameters,
        world: World,
        choice: EngineConfig,
        **_: int,  # the split of the batch, which does not matter here
    ) -> None:
        self._world, self._clip = world, recipe.grad_clip
        self.loss_scaler = LossScale(world.device) if recipe.precision == "fp16" else None
        self._trained, self._model = trained, trained.model
        self._kind = optimizer_kind(recipe.optimizer)
        self._distribute(recipe, choice)
        self._whole = dict(trained_parameters(self._model))
        # What the optimizer updates: a parameter or rows of it, and their place in the whole one.
        self._local = {name: self._local_part(whole) for name, whole in self._whole.items()}
        self._parameters = [tensor for tensor, _ in self._local.values()]
        self.clip_gradients: Callable[[float, Tensor], None] = partial(
            clip_grads_with_norm_, self._parameters
        )
        # Groups follow from whole parameters, and the optimizer gets this rank's part of each.
        tensors = dict(zip(self._whole.values(), self._parameters, strict=True))
        groups = [
            {**group, "params": [tensors[parameter] for parameter in group["params"]]}
            for group in parameter_groups(self._model, recipe)
        ]
        self.optimizer = self._kind.build(groups, recipe)
        self._share_updates()
        # Reading each norm on the host costs nothing on a CPU.
        self._waits = world.device.type == "cpu"

    def backward(self, batch: Batch, counts: Tensor, *, last: bool) -> Tensor:
        timeline = self._world.timeline
        if self.graphs is not None:
            with timeline.section("backward", on_device=True):
                return self.graphs(batch, counts)
        with timeline.section("forward", on_device=True):
            loss, figures = self._trained(batch, counts)
        reducing = self._reducing(last) if self._reduces else nullcontext()
        with timeline.section("backward", on_device=True), reducing:
            (loss if self.loss_scaler is None else loss * self.loss_scaler.value).backward()
        detached: Tensor = figures.detach()
        return detached

    def forward_backward(self, batch: Batch, counts: Tensor) -> Tensor:
        """Run `backward` of one process without loss scale, and without measuring its parts."""
        loss, figures = self._trained(batch, counts)
        loss.backward()
        detached: Tensor = figures.detach()
        return detached

    def step(self, learning_rate: float, step: int | None = None) -> Tensor | float:
        with self._world.timeline.section("optimizer", on_device=True):
            set_learning_rate(self.optimizer, learning_rate, step)
            parameters = self._parameters
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            if self.loss_scaler is not None:
                # Before the norm: clipping and the log must see the true gradient. Offloaded ones
                # lie on the host.
                scale = self.loss_scaler.value.to(gradients[0].device)
                torch._foreach_mul_(gradients, 1.0 / scale)
            # Of the sum over all ranks, so every rank clips by the same factor.
            norm = self._norm(gradients)
            if self._waits:
                norm_value = float(norm)
                # Most steps of a trained model need no clipping, which saves a pass over all
                # gradients.
                if 0 < self._clip < norm_value < math.inf:
                    self.clip_gradients(self._clip, norm)
                if math.isfinite(norm_value):
                    self.optimizer.step()
            else:
                # The device decides whether to update, and the host reads the norm later, without
                # waiting here.
                if self._clip > 0:
                    self.clip_gradients(self._clip, norm)
                # torch's fused optimizers read it, and Cloze's own.
                self.optimizer.found_inf = 1.0 - torch.isfinite(norm).float()  # type: ignore[attr-defined]
                self.optimizer.step()
            if self.loss_scaler is not None:
                self.loss_scaler.update(norm)
            if self.after_update is not None:
                self.after_update()
            # None, not zero: a parameter without a gradient is then left out of the next update.
            self.optimizer.zero_grad(set_to_none=self.graphs is None)
            return norm_value if self._waits else norm

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return own_tensors(self._model.state_dict(), self._world.rank, self._world.size)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            self._copy_weights(weights)
        if self.after_update is not None:
            self.after_update()

    def optimizer_state(self) -> Iterator[TensorSlice]:
        states = (
            (f"{name}/{key}", self.optimizer.state[self._local[name][0]][key])
            for name, key in self._states()
        )
        return own_slices(states, self._world.rank, self._world.size)

    def load_optimizer_state(self, state: LazyTensors, updates: int) -> None:
        self.optimizer.state.clear()
        if updates == 0:
            return
        # Checkpoints keep one count: every trained parameter has had all applied updates.
        for tensor in self._parameters:
            step = torch.tensor(float(updates), device=tensor.device)
            self.optimizer.state[tensor] = {"step": step}
        for name, key in self._states():
            tensor, extent = self._local[name]
            # Read in the rank's own rows, so the engine and the ranks may differ from the writer's.
            values = extent.read(state, f"{name}/{key}").view_as(tensor)
            self.optimizer.state[tensor][key] = values.to(tensor.device, copy=True)

    def _states(self) -> Iterator[tuple[str, str]]:
        """Yield parameter and key of each optimizer state tensor; none before the first update."""
        if self.optimizer.state:
            for name, _, key in optimizer_states(self._model, self._kind):
                yield name, key

    def _distribute(self, recipe: TrainingHyperparameters, choice: EngineConfig) -> None:
        """Move the model to the device; all ranks start from rank 0's weights."""
        del choice
        self._trained.to(self._world.device)
        self._reduces = self._world.size > 1
        if self._reduces:
            with torch.no_grad():
                # Buffers, too: ranks that differ in one would drift apart in silence.
                for tensor in self._model.state_dict(keep_vars=True).values():
                    distributed.broadcast(tensor, 0)
            self._sums = GradientReducer(
                [parameter for _, parameter in trained_parameters(self._model)],
                self._world.pulse,
                self._world.timeline,
                dtype=DTYPES[recipe.grad_reduce_dtype],
            )

    def _local_part(self, parameter: nn.Parameter) -> tuple[nn.Parameter, TensorExtent]:
        """Return the values of a parameter that this rank's optimizer updates."""
        return parameter, TensorExtent(0, 0, 0, parameter.numel())

    def _share_updates(self) -> None:
        """Tell the optimizer how the ranks share its work."""
        if isinstance(self.optimizer, SharedOptimizer):
            self.optimizer.ranks = (self._world.rank, self._world.size)

    @contextmanager
    def _reducing(self, last: bool) -> Iterator[None]:
        """Run a backward pass inside the block; after the last one gradients are reduced."""
        # Micro-batches before the last add up on the rank: one message a step, not one each.
        if last:
            self._sums.begin()
        yield
        if last:
            self._sums.finish()

    def _copy_weights(self, weights: Mapping[str, Tensor]) -> None:
        copy_into(self._model, weights)


def set_learning_rate(
    optimizer: torch.optim.Optimizer, learning_rate: float, step: int | None = None
) -> None:
    """Set each group's learning rate to `learning_rate` times the group's `rate`.

    Args:
        step: number of the step, from 0; the rate of a group before its `first_step` is 0, so that
            its weights stay, while its moments follow the gradient. None: no group is frozen.
    """
    for group in optimizer.param_groups:
        is_frozen = step is not None and step < group["first_step"]
        group["lr"] = 0.0 if is_frozen else learning_rate * group["rate"]
