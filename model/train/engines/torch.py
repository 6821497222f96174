"""The engine of plain torch: every rank holds everything; see `model.train.engines.protocol` for what the methods promise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, distributed

from model.tensors import Slice, Tensors, copy_into
from model.train.distributed import World
from model.train.engines import EngineChoice
from model.train.engines.average import Average
from model.train.engines.gradients import GradientSums
from model.train.engines.loss_scale import LossScale
from model.train.engines.masters import Masters
from model.train.engines.protocol import Held
from model.train.engines.shares import owners, slices
from model.train.interfaces import Recipe, Trained
from model.train.optimizers import optimizer_kind
from model.train.parameters import (
    clip,
    gradient_norm,
    optimizer_states,
    parameter_groups,
    set_learning_rate,
    trained_parameters,
)
from model.train.precision import DTYPES


def engine(
    trained: Trained, recipe: Recipe, world: World, choice: EngineChoice, *, micro_batch: int, accumulation: int
) -> TorchEngine:
    """The engine; how the batch is cut makes no difference to it."""
    del choice, micro_batch, accumulation
    return TorchEngine(trained, recipe, world)


class TorchEngine:
    """One process, or several whose gradients are added up."""

    cuts = False

    def __init__(self, trained: Trained, recipe: Recipe, world: World) -> None:
        self._world, self._clip = world, recipe.clip
        self.scale = LossScale(world.device) if recipe.precision == "fp16" else None
        self._trained = trained.to(world.device)
        self._model = trained.model
        if world.size > 1:
            with torch.no_grad():
                for tensor in self._model.state_dict(keep_vars=True).values():  # whatever made them, all begin with the same
                    distributed.broadcast(tensor, 0)
        self._masters = Masters(self._model) if recipe.reduce == "bf16" else None
        own = [parameter for _, parameter in trained_parameters(self._model)]
        self._parameters = [self._seen(parameter) for parameter in own]  # as the optimizer sees them
        self._kind = optimizer_kind(recipe.optimizer)
        groups = parameter_groups(self._model, recipe)
        self.optimizer = self._kind.build(self._masters.groups(groups) if self._masters else groups, recipe)
        self._waits = world.device.type == "cpu"  # whether the host asks for each norm: of a CPU it costs nothing
        self._sums: GradientSums | None = None
        if world.size > 1:
            self._sums = GradientSums(own, world.pulse, world.timeline, holder=self._seen, dtype=DTYPES[recipe.reduce])
            if self._kind.sees == "matrices":
                self.optimizer.ranks = (world.rank, world.size)  # type: ignore[attr-defined]
        self._average = Average(self._parameters) if recipe.ema is not None else None
        self._applied: Tensor | None = torch.tensor(0.0)  # of the last step; None: it was

    def backward(self, batch: Mapping[str, Any], counts: Tensor, *, last: bool) -> Tensor:
        timeline = self._world.timeline
        with timeline.part("forward", on_device=True):
            loss, figures = self._trained(batch, counts)
        with timeline.part("backward", on_device=True):
            if self._sums is not None and last:
                self._sums.begin()
            (loss if self.scale is None else loss * self.scale.value).backward()
            if self._sums is not None and last:
                self._sums.finish()
        detached: Tensor = figures.detach()
        return detached

    def step(self, learning_rate: float) -> Tensor:
        with self._world.timeline.part("optimizer", on_device=True):
            return self._step(learning_rate)

    def _step(self, learning_rate: float) -> Tensor:
        set_learning_rate(self.optimizer, learning_rate)
        parameters = self._parameters
        if self.scale is not None:
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            torch._foreach_mul_(gradients, 1.0 / self.scale.value)
        if self._waits:
            found = clip(parameters, self._clip)
            norm = torch.tensor(found, dtype=torch.float64)
            self._applied = None if math.isfinite(found) else torch.zeros((), device=self._world.device)
            if self._applied is None:
                self._update()
        else:
            # The device decides whether to update, and the host reads of it later: it is never waited for here.
            norm = gradient_norm(parameters)
            if self._clip > 0:
                torch.nn.utils.clip_grads_with_norm_(parameters, self._clip, norm)
            self._applied = torch.isfinite(norm).float()
            self.optimizer.found_inf = 1.0 - self._applied  # type: ignore[attr-defined]
            self._update()
        if self.scale is not None:
            self.scale.update(norm)
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def held(self) -> Iterator[Held]:
        for name, parameter in trained_parameters(self._model):
            yield Held(self._seen(parameter), name, 0, parameter.numel())

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        with self._whole():
            found = self._model.state_dict()
        owner = owners({name: tensor.numel() for name, tensor in found.items()}, self._world.size)
        return ((name, tensor) for name, tensor in found.items() if owner[name] == self._world.rank)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad(), self._whole():
            copy_into(self._model, weights)
        if self._average is not None:
            self._average.begin()

    def average(self, decay: float) -> None:
        assert self._average is not None
        self._average.move(decay, self._applied)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        assert self._average is not None
        self._average.swap()
        self._round()
        try:
            yield
        finally:
            self._average.swap()
            self._round()

    def load_average(self, weights: Tensors) -> None:
        assert self._average is not None
        for value, (name, _) in zip(self._average.values, trained_parameters(self._model), strict=True):
            value.copy_(weights[name])

    def optimizer_state(self) -> Iterator[Slice]:
        if not self.optimizer.state:
            return iter(())
        found = optimizer_states(self._model, self._kind)
        states = ((f"{name}/{key}", self.optimizer.state[self._seen(parameter)][key]) for name, parameter, key in found)
        return slices(states, self._world.rank, self._world.size)

    def load_optimizer_state(self, state: Tensors, updates: int) -> None:
        self.optimizer.state.clear()
        if updates == 0:
            return
        for parameter in self._parameters:
            self.optimizer.state[parameter] = {"step": torch.tensor(float(updates), device=parameter.device)}
        for name, parameter, key in optimizer_states(self._model, self._kind):
            seen = self._seen(parameter)
            self.optimizer.state[seen][key] = state[f"{name}/{key}"].to(seen.device, copy=True)

    def _update(self) -> None:
        self.optimizer.step()
        self._round()

    def _seen(self, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        """What the optimizer sees of a parameter of the model."""
        return parameter if self._masters is None else self._masters.of(parameter)

    def _round(self) -> None:
        """Give the model what has become of what the optimizer sees."""
        if self._masters is not None:
            self._masters.round()

    def _whole(self) -> AbstractContextManager[None]:
        """In the block the model's weights are what the optimizer sees of them."""
        return nullcontext() if self._masters is None else self._masters.whole()
