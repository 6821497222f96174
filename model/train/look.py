"""A look at one step: how long its gradient is in each part of the network, and how far it moves the weights.

    grad_norm_GROUP      before clipping; the squares of all groups add up to that of grad_norm at that step
    update_ratio_GROUP   the norm of the update beside that of the weights; about 1e-3 is usual of Adam, much more is too fast

Both are read at the optimizer, which every engine calls on what its rank holds: whole parameters, or pieces of flattened ones (ZeRO), whose
squares the ranks add up. Nothing of it changes training. It costs a pass over the gradients, and copies of a sample of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from model.train.distributed import World
from model.train.engines.protocol import Engine, Held
from model.train.layer_groups import GROUPS, groups_of
from model.train.parameters import trained_parameters

SAMPLED = 1 << 14  # numbers of a parameter, evenly spaced, that its update is measured by: to a per cent


@dataclass(slots=True)
class _Watched:
    """Numbers of one parameter that the optimizer is about to change.

    Attributes:
        group: index in `GROUPS`.
        values: a sample of them, a view.
        before: as they were.
        weight: how many numbers each of the sample stands for.
    """

    group: int
    values: Tensor
    before: Tensor
    weight: float


class Look:
    """Looks at steps of one engine."""

    def __init__(self, engine: Engine, model: torch.nn.Module, world: World) -> None:
        self._engine, self._world = engine, world
        self._group = groups_of(name for name, _ in trained_parameters(model))
        self._sums: Tensor | None = None  # [3, groups]: squares of gradient, update and weights

    @contextmanager
    def at(self, wanted: bool = True) -> Iterator[None]:
        """Look at the engine's step in the block, if that is wanted."""
        self._sums = None
        if not wanted:
            yield
            return
        optimizer = self._engine.optimizer
        held: dict[int, list[Held]] = {}
        for part in self._engine.held():
            held.setdefault(id(part.tensor), []).append(part)
        watched: list[_Watched] = []

        def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            found = [part for tensor in _tensors(optimizer) for part in held.get(id(tensor), ())]
            self._gradients(found)
            watched.extend(map(self._watched, found))

        def after(*_: Any) -> None:
            self._updates(watched)
            watched.clear()

        handles = [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def figures(self, norm: float) -> dict[str, float]:
        """The figures of the step that was looked at; empty where it changed nothing. Every rank calls it.

        Args:
            norm: of its gradient before clipping.
        """
        if self._sums is None or not math.isfinite(norm):
            return {}
        sums = self._sums.cpu()
        gradients, updates, weights = (self._world.total_of(sums) if self._engine.cuts else sums).tolist()
        whole = sum(gradients)
        found = {}
        for name, gradient in zip(GROUPS, gradients, strict=True):
            if gradient and math.isfinite(whole):
                found[f"grad_norm_{name}"] = norm * math.sqrt(gradient / whole)  # they were clipped, all alike
        for name, update, weight in zip(GROUPS, updates, weights, strict=True):
            if weight and math.isfinite(update):
                found[f"update_ratio_{name}"] = math.sqrt(update / weight)
        return {name: float(f"{value:.5g}") for name, value in found.items()}

    def _gradients(self, found: Sequence[Held]) -> None:
        by_group: dict[int, list[Tensor]] = {}
        for part in found:
            gradient = part.tensor.grad
            if gradient is not None:
                by_group.setdefault(self._index(part), []).append(part.of(gradient))
        for group, gradients in by_group.items():
            self._add(0, group, torch.nn.utils.get_total_norm(gradients).double().square())

    def _watched(self, part: Held) -> _Watched:
        values = part.of(part.tensor.detach())
        # an odd distance, so that a sample is no column of a matrix whose width is even
        values = values[:: (part.length // SAMPLED) | 1] if part.length > SAMPLED else values
        return _Watched(self._index(part), values, values.clone(), part.length / len(values))

    def _updates(self, watched: Sequence[_Watched]) -> None:
        for item in watched:
            self._add(1, item.group, item.weight * (item.values - item.before).norm().double().square())
            self._add(2, item.group, item.weight * item.before.norm().double().square())

    def _index(self, part: Held) -> int:
        return GROUPS.index(self._group(part.name))

    def _add(self, row: int, group: int, square: Tensor) -> None:
        if self._sums is None:
            self._sums = torch.zeros(3, len(GROUPS), dtype=torch.float64, device=square.device)
        self._sums[row, group] += square


def _tensors(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """What the step that begins updates: DeepSpeed gives an optimizer its groups one after another."""
    for group in optimizer.param_groups:
        yield from group["params"]
