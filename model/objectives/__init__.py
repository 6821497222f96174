"""The table of pretraining objectives: what a model's outputs are scored by.

An objective is one function in one file: `objective(outputs, batch) -> LossSum`. It returns the *sum* of its loss and the
count it is over, never a mean: the trainer divides by the count over all micro-batches and ranks, so the gradient does not
depend on how a batch is split.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pipeline.errors import UsageError, did_you_mean
from pipeline.schema import NO_PAIR

if TYPE_CHECKING:
    from torch import Tensor

OBJECTIVES: dict[str, str] = {
    "mlm": "model.objectives.mlm:mlm",
    "nsp": "model.objectives.nsp:nsp",
}

IGNORE = NO_PAIR  # a label that takes no part in a loss: a row without a pair, or filler among the masked positions


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSum:
    """One objective's loss over (part of) a batch, ready to be added up.

    Attributes:
        name: the objective's, as in `OBJECTIVES`.
        total: fp32 scalar, nats, differentiable: the loss summed over the predictions.
        count: int64 scalar: how many predictions.
        correct: int64 scalar: how many of them had the right answer on top.
    """

    name: str
    total: Tensor
    count: Tensor
    correct: Tensor


class Objective(Protocol):
    """Scores `outputs` of a model against the labels in `batch`; both are dicts of tensors."""

    def __call__(self, outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> LossSum: ...


def names_for(pair_task: str | None) -> tuple[str, ...]:
    """The objectives that a dataset's rows are made for: masked tokens always, the pair task where there is one."""
    return ("mlm",) if pair_task is None else ("mlm", pair_task)


def objectives(names: Iterable[str]) -> tuple[Objective, ...]:
    """The functions behind the names, in order.

    Raises:
        UsageError: a name is unknown.
    """
    found: list[Objective] = []
    for name in names:
        if name not in OBJECTIVES:
            raise UsageError(f"objectives ({name!r}) is unknown; {did_you_mean(name, OBJECTIVES)}")
        module, _, function = OBJECTIVES[name].partition(":")
        found.append(getattr(importlib.import_module(module), function))
    return tuple(found)


def total_loss(sums: Sequence[LossSum], counts: Mapping[str, Tensor | int | float] | None = None) -> Tensor:
    """The loss to differentiate: over objectives, the sum of (summed loss / count), as in BERT (section A.2).

    Args:
        sums: what the objectives gave for this micro-batch.
        counts: by objective's name, the count to divide by: that of the whole global batch. By default this micro-batch's own.

    Returns:
        fp32 scalar. Added up over all micro-batches and ranks it is the loss of the global batch. An objective that has
        nothing to predict (count 0) gives 0.
    """
    import torch

    if not sums:
        raise UsageError("there is no objective to train on; name at least one of " + ", ".join(sorted(OBJECTIVES)))
    loss = torch.zeros((), dtype=torch.float32, device=sums[0].total.device)
    for item in sums:
        count = torch.as_tensor(item.count if counts is None else counts[item.name], device=loss.device)
        loss = loss + item.total / count.clamp(min=1)
    return loss
