"""The table of optimizers. An optimizer is an `OptimizerSpec`, and a line here.

  adamw         Adam with decoupled weight decay: the default
  stable-adamw  AdamW that lowers a tensor's rate if its gradient exceeds the second moment
  lamb          AdamW with updates scaled by each matrix's weight norm: for large batches
  muon          orthogonalized updates of the layers' matrices, AdamW for all other parameters

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cloze.core.options import known
from cloze.core.plugins import Table

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from cloze.model.train.spec.train_spec import TrainingHyperparameters

_OPTIMIZERS = {
    "adamw": "cloze.model.train.optimizers.adam:ADAMW",
    "stable-adamw": "cloze.model.train.optimizers.adam:STABLE_ADAMW",
    "lamb": "cloze.model.train.optimizers.adam:LAMB",
    "muon": "cloze.model.train.optimizers.muon:OPTIMIZER",
}
OPTIMIZERS: Table[OptimizerSpec] = Table("optimizers", "optimizer", _OPTIMIZERS, ("optimizer",))
DEFAULT_OPTIMIZER = "adamw"
OptimizerName = Annotated[str, known(OPTIMIZERS, "there is no such optimizer")]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """An optimizer.

    Attributes:
        build: maps parameter groups (`optimizers.parameters.parameter_groups`) and hyperparameters
            to the optimizer: a `SharedOptimizer` if the update of a value depends on more than its
            own gradient and state, since ZeRO cuts parameters anywhere. If its attribute
            `found_inf`, a tensor, is 1, a step must change nothing, as in torch's fused
            optimizers. The host then need not ask a GPU whether the gradient is finite.
        state: names of the state tensors with the parameter's shape; a scalar `step` exists in
            addition.
        matrix_state: names of the state tensors of the layers' matrices, if these are treated
            separately and have groups of their own; None: as `state`.
    """

    build: Callable[[list[dict[str, Any]], TrainingHyperparameters], Optimizer]
    state: tuple[str, ...]
    matrix_state: tuple[str, ...] | None = None


def optimizer_kind(name: str) -> OptimizerSpec:
    """Import and return the optimizer with this name."""
    return OPTIMIZERS.find(name)
