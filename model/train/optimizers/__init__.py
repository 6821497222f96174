"""The table of optimizers. One is a file with an `OptimizerKind`, and a line here. No torch in this module.

adamw         Adam with decoupled weight decay: the default
stable-adamw  AdamW whose rate falls, tensor by tensor, where a gradient is larger than the second moment says
lamb          AdamW whose update is as long, in each matrix, as the learning rate's share of its weights: large batches
muon          orthogonal updates of the layers' matrices, AdamW for all the rest
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pipeline.core.errors import did_you_mean
from pipeline.core.registry import load

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from model.train.interfaces import Recipe

OPTIMIZERS: dict[str, str] = {
    "adamw": "model.train.optimizers.adamw:OPTIMIZER",
    "stable-adamw": "model.train.optimizers.stable_adamw:OPTIMIZER",
    "lamb": "model.train.optimizers.lamb:OPTIMIZER",
    "muon": "model.train.optimizers.muon:OPTIMIZER",
}
DEFAULT_OPTIMIZER = "adamw"


def known_optimizer(name: str) -> str:
    """The value of a config's field, if there is an optimizer of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"there is no such optimizer; {did_you_mean(name, OPTIMIZERS)}")
    return name


def optimizer_help() -> str:
    """The help text of a config's field."""
    return f"What turns gradients into updates: {', '.join(OPTIMIZERS)}."


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerKind:
    """What a file of this package holds.

    Attributes:
        build: parameter groups (`model.train.parameters.parameter_groups`) and recipe to the optimizer. Where its attribute `found_inf`,
            a tensor, is 1 it leaves everything as it is, whatever the gradients are, as torch's fused ones do: so a GPU is not asked at
            each step whether the gradient is finite.
        state: the names of its state tensors that have the parameter's shape; a scalar `step` comes beside them.
        hidden: likewise of the layers' matrices, where it treats those apart: then they have groups of their own.
        sees: what it looks at to update one number of a parameter. ZeRO 1 to 3 cut flattened parameters at any place.

            numbers    that number, its gradient and its state alone
            tensors    sums over all numbers of the parameter, too: an engine that cuts parameters sets the optimizer's `cuts`
            matrices   the whole parameter: likewise; and where several ranks hold all of them, the engine sets the optimizer's `ranks`,
                       (this rank, how many), so that they can share the work
    """

    build: Callable[[list[dict[str, Any]], Recipe], Optimizer]
    state: tuple[str, ...]
    hidden: tuple[str, ...] | None = None
    sees: Literal["numbers", "tensors", "matrices"] = "numbers"


def optimizer_kind(name: str) -> OptimizerKind:
    """The row of that name, imported."""
    found: OptimizerKind = load(OPTIMIZERS[name])
    return found
