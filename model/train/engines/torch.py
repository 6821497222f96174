"""The engine of plain torch: every rank holds everything; see `model.train.engines.protocol` for what the methods promise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed

from model.tensors import Slice, Tensors, copy_into
from model.train.distributed import World
from model.train.engines.average import Average
from model.train.engines.gradients import GradientSums
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


def engine(trained: Trained, recipe: Recipe, world: World, *, zero: int, micro_batch: int, accumulation: int) -> TorchEngine:
    """The engine; how the batch is cut makes no difference to it."""
    del zero, micro_batch, accumulation
    return TorchEngine(trained, recipe, world)


class TorchEngine:
    """One process, or several whose gradients are added up."""

    cuts = False

    def __init__(self, trained: Trained, recipe: Recipe, world: World) -> None:
        self._world, self._clip = world, recipe.clip
        self._trained = trained.to(world.device)
        self._model = trained.model
        self._parameters = [parameter for _, parameter in trained_parameters(self._model)]
        self._kind = optimizer_kind(recipe.optimizer)
        self.optimizer = self._kind.build(parameter_groups(self._model, recipe), recipe)
        self._sums: GradientSums | None = None
        if world.size > 1:
            with torch.no_grad():
                for tensor in self._model.state_dict(keep_vars=True).values():  # whatever made them, all begin with the same
                    distributed.broadcast(tensor, 0)
            self._sums = GradientSums(self._parameters, world.pulse, world.timeline)
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
            loss.backward()
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
        if self._world.device.type == "cuda" and self._kind.skips:
            # The device decides whether to update, and the host reads of it later: it is never waited for here.
            norm = gradient_norm(parameters)
            if self._clip > 0:
                torch.nn.utils.clip_grads_with_norm_(parameters, self._clip, norm)
            self.optimizer.found_inf = (~torch.isfinite(norm)).float()  # type: ignore[attr-defined]
            self.optimizer.step()
            self._applied = torch.isfinite(norm).float()
        else:
            found = clip(parameters, self._clip)
            norm = torch.tensor(found, dtype=torch.float64)
            self._applied = None if math.isfinite(found) else torch.zeros((), device=self._world.device)
            if self._applied is None:
                self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def held(self) -> Iterator[Held]:
        for name, parameter in trained_parameters(self._model):
            yield Held(parameter, name, 0, parameter.numel())

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        found = self._model.state_dict()
        owner = owners({name: tensor.numel() for name, tensor in found.items()}, self._world.size)
        return ((name, tensor) for name, tensor in found.items() if owner[name] == self._world.rank)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
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
        try:
            yield
        finally:
            self._average.swap()

    def load_average(self, weights: Tensors) -> None:
        assert self._average is not None
        for value, (name, _) in zip(self._average.values, trained_parameters(self._model), strict=True):
            value.copy_(weights[name])

    def optimizer_state(self) -> Iterator[Slice]:
        if not self.optimizer.state:
            return iter(())
        found = optimizer_states(self._model, self._kind)
        states = ((f"{name}/{key}", self.optimizer.state[parameter][key]) for name, parameter, key in found)
        return slices(states, self._world.rank, self._world.size)

    def load_optimizer_state(self, state: Tensors, updates: int) -> None:
        self.optimizer.state.clear()
        if updates == 0:
            return
        for parameter in self._parameters:
            self.optimizer.state[parameter] = {"step": torch.tensor(float(updates), device=parameter.device)}
        for name, parameter, key in optimizer_states(self._model, self._kind):
            self.optimizer.state[parameter][key] = state[f"{name}/{key}"].to(parameter.device, copy=True)
