"""The table of optimizers. One is a file with an `OptimizerKind`, and a line here. No torch in this module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.core.registry import load

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from model.train.interfaces import Recipe

OPTIMIZERS: dict[str, str] = {"adamw": "model.train.optimizers.adamw:OPTIMIZER"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerKind:
    """What a file of this package holds.

    Attributes:
        build: parameter groups and recipe to the optimizer.
        state: the names of its state tensors that have the parameter's shape; a scalar `step` comes beside them.
        elementwise: whether each number of a parameter is updated by itself. ZeRO 1 to 3 cut flattened parameters at any
            place, so an optimizer that looks at whole matrices (LAMB, Muon) would be silently wrong there.
        skips: whether it leaves everything as it is where its attribute `found_inf`, a tensor, is 1, as torch's fused ones do:
            then a GPU needs not be asked at each step whether the gradient is finite.
    """

    build: Callable[[list[dict[str, Any]], Recipe], Optimizer]
    state: tuple[str, ...]
    elementwise: bool = True
    skips: bool = False


def optimizer_kind(name: str) -> OptimizerKind:
    """The row of that name, imported."""
    found: OptimizerKind = load(OPTIMIZERS[name])
    return found
