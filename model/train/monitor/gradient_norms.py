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
from cloze.model.train.engines.protocol import Engine
from cloze.model.train.optimizers.parameters import trained_parameters
from cloze.model.train.optimizers.sharded_parameters import TensorExtent

GROUPS = ("embeddings", "layers_lower", "layers_middle", "layers_upper", "heads")
_THIRDS = GROUPS[1:4]
_PART = re.compile(
    r"(?P<encoder>(?:^|.*\.)encoder)\.(?:(?P<embeddings>embeddings)|(?:layers|"
    r"groups)\.(?P<layer>\d+))\."
)
# Values sampled per parameter to measure its update to 1 or 2 %, evenly spaced in runs of
# `NEIGHBOURS`, which share a memory access.
SAMPLED = 1 << 13
NEIGHBOURS = 4


def groups_of(names: Iterable[str]) -> Callable[[str], str]:
    """Return a function from parameter name to group, for the network with these parameters.

    Of n layers, layer i (from 0) is in third 3 i // n; each encoder (ELECTRA has two) is divided
    separately. Other parameters of an encoder (a last norm, relative position tables) count as
    heads.
    """
    layers: dict[str, int] = {}
    for name in names:
        match = _PART.match(name)
        if match is not None and match["layer"] is not None:
            layers[match["encoder"]] = max(layers.get(match["encoder"], 0), int(match["layer"]) + 1)

    def group(name: str) -> str:
        match = _PART.match(name)
        if match is None:
            return GROUPS[-1]
        if match["embeddings"] is not None:
            return GROUPS[0]
        return _THIRDS[3 * int(match["layer"]) // layers[match["encoder"]]]

    return group


@dataclass(frozen=True, slots=True)
class _Part:
    """Consecutive values of a parameter in a tensor that the optimizer updates.

    Attributes:
        group: index in `GROUPS`.
    """

    group: int
    tensor: Tensor
    extent: TensorExtent


@dataclass(frozen=True, slots=True)
class _SampledValues:
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
    def collect(self, enabled: bool = True) -> Iterator[None]:
        """Collect the statistics of the engine's step in the block, if `enabled`."""
        self._sums = None
        if not enabled:
            yield
            return
        parts: dict[int, list[_Part]] = {}
        for name, tensor, extent in self._engine.local_parameters():
            if extent.length:  # a rank may have no row of a small parameter
                part = _Part(GROUPS.index(self._group(name)), tensor, extent)
                parts.setdefault(id(tensor), []).append(part)
        samples: list[_SampledValues] = []

        def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            # DeepSpeed steps one group at a time.
            tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
            stepped = [part for tensor in tensors for part in parts.get(id(tensor), ())]
            if stepped:
                self._add_gradients(stepped)
                samples.append(_sample(stepped))

        def after(*_: Any) -> None:
            for sample in samples:
                self._add_updates(sample)
            samples.clear()

        optimizer = self._engine.optimizer
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
        if self._engine.is_sharded:
            self._world.all_reduce_tensor(sums)
        gradients, updates, weights = sums.tolist()
        total = sum(gradients)
        metrics = {}
        for name, gradient in zip(GROUPS, gradients, strict=True):
            # Clipping scaled all gradients by the same factor.
            if gradient and math.isfinite(total):
                metrics[f"grad_norm_{name}"] = norm * math.sqrt(gradient / total)
        for name, update, weight in zip(GROUPS, updates, weights, strict=True):
            if weight and math.isfinite(update):
                metrics[f"update_ratio_{name}"] = math.sqrt(update / weight)
        return {name: float(f"{value:.5g}") for name, value in metrics.items()}

    def _add_gradients(self, parts: Sequence[_Part]) -> None:
        with_gradient = [part for part in parts if part.tensor.grad is not None]
        if with_gradient:
            squares = _squares([part.extent.of(part.tensor.grad) for part in with_gradient])  # type: ignore[arg-type]
            self._add(0, _groups(with_gradient, squares.device), squares)

    def _add_updates(self, sample: _SampledValues) -> None:
        sizes = [values.numel() for values in sample.values]
        changes = _concatenate(sample.values).sub_(sample.before)
        self._add(1, sample.groups, sample.weights * _squares(torch.split(changes, sizes)))
        self._add(2, sample.groups, sample.weights * _squares(torch.split(sample.before, sizes)))

    def _add(self, row: int, groups: Tensor, squares: Tensor) -> None:
        if self._sums is None:
            self._sums = torch.zeros(3, len(GROUPS), dtype=torch.float64, device=squares.device)
        self._sums[row].index_add_(0, groups, squares)


def _sample(parts: Sequence[_Part]) -> _SampledValues:
    values = [sampled(part.extent.of(part.tensor.detach())) for part in parts]
    before = _concatenate(values)
    weights = torch.tensor(
        [part.extent.length / sample.numel() for part, sample in zip(parts, values, strict=True)],
        dtype=torch.float64,
        device=before.device,
    )
    return _SampledValues(_groups(parts, before.device), values, before, weights)


def _groups(parts: Sequence[_Part], device: torch.device) -> Tensor:
    return torch.tensor([part.group for part in parts], device=device)


def _concatenate(parts: Sequence[Tensor]) -> Tensor:
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
    stride = (len(values) // (SAMPLED // NEIGHBOURS)) | 1
    runs = len(values) // stride
    return values[: runs * stride].view(runs, stride)[:, :NEIGHBOURS]
