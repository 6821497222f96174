"""The engine of plain torch: every rank has a full replica.

`cloze.model.train.engines.protocol` documents the methods.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, distributed

from cloze.model.tensors import LazyTensors, TensorSlice, copy_into
from cloze.model.train.distributed import World
from cloze.model.train.engines import EngineConfig
from cloze.model.train.engines.device_scalars import LossScale
from cloze.model.train.engines.gradients import GradientReducer, own_slices, own_tensors
from cloze.model.train.engines.weight_copies import MasterWeights, WeightEMA
from cloze.model.train.loop.interfaces import TrainModule
from cloze.model.train.loop.train_spec import TrainingHyperparameters
from cloze.model.train.optimizers import optimizer_kind
from cloze.model.train.optimizers.parameters import (
    clip_gradient_norm,
    gradient_norm,
    optimizer_states,
    parameter_groups,
    set_learning_rate,
    trained_parameters,
)
from cloze.model.train.optimizers.sharded_parameters import TensorExtent
from cloze.model.train.precision import DTYPES


def engine(
    trained: TrainModule,
    recipe: TrainingHyperparameters,
    world: World,
    choice: EngineConfig,
    *,
    micro_batch: int,
    accumulation: int,
) -> TorchEngine:
    """Create the engine; the split of the batch does not matter to it."""
    del choice, micro_batch, accumulation
    return TorchEngine(trained, recipe, world)


class TorchEngine:
    """A single process, or data parallel processes that sum their gradients."""

    is_sharded = False

    def __init__(self, trained: TrainModule, recipe: TrainingHyperparameters, world: World) -> None:
        self._world, self._clip = world, recipe.grad_clip
        self.loss_scaler = LossScale(world.device) if recipe.precision == "fp16" else None
        self._trained = trained.to(world.device)
        self._model = trained.model
        if world.size > 1:
            with torch.no_grad():
                # All ranks start from rank 0's weights.
                for tensor in self._model.state_dict(keep_vars=True).values():
                    distributed.broadcast(tensor, 0)
        self._masters = MasterWeights(self._model) if recipe.grad_reduce_dtype == "bf16" else None
        trained_weights = [parameter for _, parameter in trained_parameters(self._model)]
        # As the optimizer sees them.
        self._parameters = [self._optimized(parameter) for parameter in trained_weights]
        self._kind = optimizer_kind(recipe.optimizer)
        groups = parameter_groups(self._model, recipe)
        self.optimizer = self._kind.build(
            self._masters.groups(groups) if self._masters else groups, recipe
        )
        # Reading each norm on the host costs nothing on a CPU.
        self._waits = world.device.type == "cpu"
        self._sums: GradientReducer | None = None
        if world.size > 1:
            self._sums = GradientReducer(
                trained_weights,
                world.pulse,
                world.timeline,
                holder=self._optimized,
                dtype=DTYPES[recipe.grad_reduce_dtype],
            )
            if self._kind.scope == "matrices":
                self.optimizer.ranks = (world.rank, world.size)  # type: ignore[attr-defined]
        self._average = WeightEMA(self._parameters) if recipe.ema is not None else None
        # 1 or 0: the last step was applied or skipped; None: it was applied.
        self._applied: Tensor | None = torch.tensor(0.0)

    def backward(self, batch: Mapping[str, Any], counts: Tensor, *, last: bool) -> Tensor:
        timeline = self._world.timeline
        with timeline.section("forward", on_device=True):
            loss, figures = self._trained(batch, counts)
        with timeline.section("backward", on_device=True):
            if self._sums is not None and last:
                self._sums.begin()
            (loss if self.loss_scaler is None else loss * self.loss_scaler.value).backward()
            if self._sums is not None and last:
                self._sums.finish()
        detached: Tensor = figures.detach()
        return detached

    def step(self, learning_rate: float) -> Tensor:
        with self._world.timeline.section("optimizer", on_device=True):
            return self._step(learning_rate)

    def _step(self, learning_rate: float) -> Tensor:
        set_learning_rate(self.optimizer, learning_rate)
        parameters = self._parameters
        if self.loss_scaler is not None:
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            torch._foreach_mul_(gradients, 1.0 / self.loss_scaler.value)
        if self._waits:
            norm_value = clip_gradient_norm(parameters, self._clip)
            norm = torch.tensor(norm_value, dtype=torch.float64)
            self._applied = (
                None if math.isfinite(norm_value) else torch.zeros((), device=self._world.device)
            )
            if self._applied is None:
                self._update()
        else:
            # The device decides whether to update, and the host reads the norm later, without
            # waiting here.
            norm = gradient_norm(parameters)
            if self._clip > 0:
                torch.nn.utils.clip_grads_with_norm_(parameters, self._clip, norm)
            self._applied = torch.isfinite(norm).float()
            self.optimizer.found_inf = 1.0 - self._applied  # type: ignore[attr-defined]
            self._update()
        if self.loss_scaler is not None:
            self.loss_scaler.update(norm)
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def local_parameters(self) -> Iterator[tuple[str, Tensor, TensorExtent]]:
        for name, parameter in trained_parameters(self._model):
            yield name, self._optimized(parameter), TensorExtent(0, 0, 0, parameter.numel())

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        with self._optimizer_weights():
            tensors = self._model.state_dict()
        return own_tensors(tensors, self._world.rank, self._world.size)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad(), self._optimizer_weights():
            copy_into(self._model, weights)
        if self._average is not None:
            self._average.reset()

    def update_ema(self, decay: float) -> None:
        assert self._average is not None
        self._average.update(decay, self._applied)

    @contextmanager
    def ema_weights(self) -> Iterator[None]:
        assert self._average is not None
        self._average.swap()
        self._round()
        try:
            yield
        finally:
            self._average.swap()
            self._round()

    def load_ema(self, weights: LazyTensors) -> None:
        assert self._average is not None
        for value, (name, _) in zip(
            self._average.values, trained_parameters(self._model), strict=True
        ):
            value.copy_(weights[name])

    def optimizer_state(self) -> Iterator[TensorSlice]:
        if not self.optimizer.state:
            return iter(())
        states = (
            (f"{name}/{key}", self.optimizer.state[self._optimized(parameter)][key])
            for name, parameter, key in optimizer_states(self._model, self._kind)
        )
        return own_slices(states, self._world.rank, self._world.size)

    def load_optimizer_state(self, state: LazyTensors, updates: int) -> None:
        self.optimizer.state.clear()
        if updates == 0:
            return
        for parameter in self._parameters:
            self.optimizer.state[parameter] = {
                "step": torch.tensor(float(updates), device=parameter.device)
            }
        for name, parameter, key in optimizer_states(self._model, self._kind):
            optimized = self._optimized(parameter)
            self.optimizer.state[optimized][key] = state[f"{name}/{key}"].to(
                optimized.device, copy=True
            )

    def _update(self) -> None:
        self.optimizer.step()
        self._round()

    def _optimized(self, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        """Return the parameter that the optimizer sees for a parameter of the model."""
        return parameter if self._masters is None else self._masters.master_of(parameter)

    def _round(self) -> None:
        """Copy the optimizer's weights into the model."""
        if self._masters is not None:
            self._masters.sync_to_model()

    def _optimizer_weights(self) -> AbstractContextManager[None]:
        """Make the optimizer's weights the model's weights inside the block."""
        return nullcontext() if self._masters is None else self._masters.as_model_weights()
