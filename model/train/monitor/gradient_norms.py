"""Gradient statistics: norms of gradients and updates by part of the network.

The parts are the embeddings, the layers in three thirds, and the heads. Thirds are readable and
still show gradients that explode or vanish towards the bottom.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cloze.model.train.distributed import World
from cloze.model.train.engines.protocol import Engine, TensorExtent
from cloze.model.train.optimizers.parameters import trained_parameters

GROUPS = ("embeddings", "layers_lower", "layers_middle", "layers_upper", "heads")
_THIRDS = GROUPS[1:4]
_PLACE = re.compile(
    r"(?P<encoder>(?:^|.*\.)encoder)\.(?:(?P<embeddings>embeddings)|(?:layers|"
    r"groups)\.(?P<layer>\d+))\."
)


def groups_of(names: Iterable[str]) -> Callable[[str], str]:
    """Return a function from parameter name to group, for the network with these parameters.

    Of n layers, layer i (from 0) is in third 3 i // n; each encoder (ELECTRA has two) is divided
    separately. Other parameters of an encoder (a last norm, relative position tables) count as
    heads.
    """
    layers: dict[str, int] = {}
    for name in names:
        found = _PLACE.match(name)
        if found is not None and found["layer"] is not None:
            layers[found["encoder"]] = max(layers.get(found["encoder"], 0), int(found["layer"]) + 1)

    def group(name: str) -> str:
        found = _PLACE.match(name)
        if found is None:
            return GROUPS[-1]
        if found["embeddings"] is not None:
            return GROUPS[0]
        return _THIRDS[3 * int(found["layer"]) // layers[found["encoder"]]]

    return group


# Values sampled per parameter to measure its update to 1 or 2 %, evenly spaced in runs of
# `TOGETHER` neighbours, which share a memory access.
SAMPLED = 1 << 13
TOGETHER = 4


@dataclass(slots=True)
class _Watched:
    """Sampled parameter values before an update.

    Attributes:
        groups: int64 [parts], index in `GROUPS` of each part.
        values: views of the sampled values of each part.
        before: concatenated copy of the values before the update.
        weights: float64 [parts], number of values that each sampled value represents.
    """

    groups: Tensor
    values: list[Tensor]
    before: Tensor
    weights: Tensor


class GradientStatistics:
    """Collects gradient and update norms of an engine's steps."""

    def __init__(self, engine: Engine, model: torch.nn.Module, world: World) -> None:
        self._engine, self._world = engine, world
        self._group = groups_of(name for name, _ in trained_parameters(model))
        self._sums: Tensor | None = None  # [3, groups]: squares of gradient, update and weights

    @contextmanager
    def collect(self, wanted: bool = True) -> Iterator[None]:
        """Collect the statistics of the engine's step in the block, if `wanted`."""
        self._sums = None
        if not wanted:
            yield
            return
        optimizer = self._engine.optimizer
        held: dict[int, list[TensorExtent]] = {}
        for part in self._engine.local_parameters():
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

        handles = [
            optimizer.register_step_pre_hook(before),
            optimizer.register_step_post_hook(after),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def metrics(self, norm: float) -> dict[str, float]:
        """Return the metrics of the collected step, empty if it was skipped; every rank calls it.

        Args:
            norm: gradient norm before clipping.
        """
        if self._sums is None or not math.isfinite(norm):
            return {}
        sums = self._sums.cpu()
        gradients, updates, weights = (
            self._world.all_reduce_tensor(sums) if self._engine.is_sharded else sums
        ).tolist()
        whole = sum(gradients)
        found = {}
        for name, gradient in zip(GROUPS, gradients, strict=True):
            # Clipping scaled all gradients by the same factor.
            if gradient and math.isfinite(whole):
                found[f"grad_norm_{name}"] = norm * math.sqrt(gradient / whole)
        for name, update, weight in zip(GROUPS, updates, weights, strict=True):
            if weight and math.isfinite(update):
                found[f"update_ratio_{name}"] = math.sqrt(update / weight)
        return {name: float(f"{value:.5g}") for name, value in found.items()}

    def _gradients(self, found: Sequence[TensorExtent]) -> None:
        there = [(part, part.tensor.grad) for part in found if part.tensor.grad is not None]
        if there:
            squares = _squares([part.of(gradient) for part, gradient in there])
            self._add(0, self._groups([part for part, _ in there], squares.device), squares)

    def _watched(self, found: Sequence[TensorExtent]) -> _Watched:
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

    def _groups(self, parts: Sequence[TensorExtent], device: torch.device) -> Tensor:
        return torch.tensor([GROUPS.index(self._group(part.name)) for part in parts], device=device)

    def _add(self, row: int, groups: Tensor, squares: Tensor) -> None:
        if self._sums is None:
            self._sums = torch.zeros(3, len(GROUPS), dtype=torch.float64, device=squares.device)
        self._sums[row].index_add_(0, groups, squares)


def _together(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate copies of all parts."""
    return torch.cat([part.flatten() for part in parts])


def _squares(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of squares of each part, float64 [parts], in few operations."""
    return torch.stack(torch._foreach_norm(list(parts))).double().square()


def sampled(values: Tensor) -> Tensor:
    """Return a sample of a flat tensor as a view.

    The stride is odd, so that the sample does not follow the columns of a matrix of even width.
    """
    if len(values) <= SAMPLED:
        return values
    distance = (len(values) // (SAMPLED // TOGETHER)) | 1
    places = len(values) // distance
    return values[: places * distance].view(places, distance)[:, :TOGETHER]


def _tensors(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Yield the tensors of the step; DeepSpeed steps one group at a time."""
    for group in optimizer.param_groups:
        yield from group["params"]
