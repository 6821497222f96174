"""Gradient norms by part of the network.

The parts are the embeddings, the layers in three thirds, and the heads. Thirds are readable and
still show gradients that explode or vanish towards the bottom.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from cloze.model.train.distributed import World
from cloze.model.train.engines.protocol import Engine
from cloze.model.train.optimizers.parameters import trained_parameters

GROUPS = ("embeddings", "layers_lower", "layers_middle", "layers_upper", "heads")
_THIRDS = GROUPS[1:4]
_PART = re.compile(
    r"(?P<encoder>(?:^|.*\.)encoder)\."
    r"(?:(?P<embeddings>embeddings)|(?:layers|groups)\.(?P<layer>\d+))\."
)


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


class GradientNorms:
    """Collects the gradient norms of an engine's steps."""

    def __init__(self, engine: Engine, model: torch.nn.Module, world: World) -> None:
        self._engine, self._world = engine, world
        self._group = groups_of(name for name, _ in trained_parameters(model))
        self._squares: Tensor | None = None  # float64 [groups], sums of squares on this rank

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Collect the norms in the engine's step in the block."""
        self._squares = None
        by_tensor: dict[int, list[tuple[int, Any]]] = {}
        for name, tensor, extent in self._engine.local_parameters():
            if extent.length:  # a rank may have no row of a small parameter
                part = GROUPS.index(self._group(name)), extent
                by_tensor.setdefault(id(tensor), []).append(part)

        def add(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            # DeepSpeed steps one group at a time.
            tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
            parts = [
                (group, extent.of(tensor.grad))
                for tensor in tensors
                if tensor.grad is not None
                for group, extent in by_tensor.get(id(tensor), ())
            ]
            if not parts:
                return
            squares = (
                torch.stack(torch._foreach_norm([values for _, values in parts])).double() ** 2
            )
            groups = torch.tensor([group for group, _ in parts], device=squares.device)
            if self._squares is None:
                self._squares = squares.new_zeros(len(GROUPS))
            self._squares.index_add_(0, groups, squares)

        # In the optimizer's step: only there do all engines have the sums over ranks, cut by rank.
        handle = self._engine.optimizer.register_step_pre_hook(add)
        try:
            yield
        finally:
            handle.remove()

    def metrics(self, norm: float) -> dict[str, float]:
        """Return the metrics of the collected step, empty if it was skipped; every rank calls it.

        Args:
            norm: gradient norm before clipping.
        """
        if self._squares is None or not math.isfinite(norm):
            return {}
        sums = self._squares.cpu()
        # A replica has whole gradients on every rank; a sum over ranks would count them again.
        if self._engine.is_sharded:
            self._world.all_reduce_tensor(sums)
        squares = sums.tolist()
        total = sum(squares)
        # Clipping scaled all gradients by the same factor.
        return {
            f"grad_norm_{name}": float(f"{norm * math.sqrt(square / total):.5g}")
            for name, square in zip(GROUPS, squares, strict=True)
            if square and math.isfinite(total)
        }
