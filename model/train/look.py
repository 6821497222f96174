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

SAMPLED = 1 << 13  # numbers of a parameter, evenly spaced, that its update is measured by: to a per cent or two
TOGETHER = 4  # of these side by side: each place is fetched from memory anew


@dataclass(slots=True)
class _Watched:
    """Numbers of parameters that the optimizer is about to change.

    Attributes:
        groups: int64 [parts], index in `GROUPS` of each part.
        values: a sample of each part, views.
        before: all of these as they were, one behind the other.
        weights: how many numbers each of a sample stands for, float64 [parts].
    """

    groups: Tensor
    values: list[Tensor]
    before: Tensor
    weights: Tensor


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
            if found:
                self._gradients(found)
                watched.append(self._watched(found))

        def after(*_: Any) -> None:
            for item in watched:
                self._updates(item)
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
        there = [(part, part.tensor.grad) for part in found if part.tensor.grad is not None]
        if there:
            squares = _squares([part.of(gradient) for part, gradient in there])
            self._add(0, self._groups([part for part, _ in there], squares.device), squares)

    def _watched(self, found: Sequence[Held]) -> _Watched:
        values = [sampled(part.of(part.tensor.detach())) for part in found]
        weights = [part.length / sample.numel() for part, sample in zip(found, values, strict=True)]
        before = _together(values)
        of = torch.tensor(weights, dtype=torch.float64, device=before.device)
        return _Watched(self._groups(found, before.device), values, before, of)

    def _updates(self, item: _Watched) -> None:
        sizes = [sample.numel() for sample in item.values]
        moved = _together(item.values).sub_(item.before)
        self._add(1, item.groups, item.weights * _squares(torch.split(moved, sizes)))
        self._add(2, item.groups, item.weights * _squares(torch.split(item.before, sizes)))

    def _groups(self, parts: Sequence[Held], device: torch.device) -> Tensor:
        return torch.tensor([GROUPS.index(self._group(part.name)) for part in parts], device=device)

    def _add(self, row: int, groups: Tensor, squares: Tensor) -> None:
        if self._sums is None:
            self._sums = torch.zeros(3, len(GROUPS), dtype=torch.float64, device=squares.device)
        self._sums[row].index_add_(0, groups, squares)


def _together(parts: Sequence[Tensor]) -> Tensor:
    """A copy of all of them, one behind the other."""
    return torch.cat([part.flatten() for part in parts])


def _squares(parts: Sequence[Tensor]) -> Tensor:
    """The sum of the squares of each, float64 [parts]: a few operations for all of them."""
    return torch.stack(torch._foreach_norm(list(parts))).double().square()


def sampled(values: Tensor) -> Tensor:
    """Numbers of a flat tensor, a view; by an odd distance, so that they are no columns of a matrix whose width is even."""
    if len(values) <= SAMPLED:
        return values
    distance = (len(values) // (SAMPLED // TOGETHER)) | 1
    places = len(values) // distance
    return values[: places * distance].view(places, distance)[:, :TOGETHER]


def _tensors(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """What the step that begins updates: DeepSpeed gives an optimizer its groups one after another."""
    for group in optimizer.param_groups:
        yield from group["params"]
