"""Losses of objectives outside of a training: what `WeightedLosses` makes of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cloze.model.objectives import Objective
from cloze.model.train.evaluate.scoring import WeightedLosses


@dataclass(frozen=True)
class Score:
    """An objective's summed loss, with the number of right answers and of predictions."""

    total: Tensor
    correct: Tensor
    count: Tensor


def score(objective: Objective, outputs: Any, batch: Any) -> Score:
    return Score(*objective.loss(outputs, batch), objective.targets(batch).sum())


class _Given(WeightedLosses):
    """Losses that are known, for a training module without a network."""

    def _sums(self, batch: Any) -> tuple[Sequence[tuple[Tensor, Tensor]], Any]:
        return [(item.total, item.correct) for item in batch["scores"]], None

    def predict(self, batch: Any) -> Any:
        return batch

    def count_targets(self, batch: Any) -> list[int]:
        return [int(item.count) for item in batch["scores"]]


def total_loss(scores: Sequence[Score], counts: Sequence[Tensor] | None = None) -> Tensor:
    """The loss of equal weights; `counts`: of the whole batch. Default: this one's."""
    names = [str(number) for number in range(len(scores))]
    module = _Given(nn.Identity(), names, [1.0] * len(names), "fp32")
    own = [item.count for item in scores] if counts is None else counts
    batch: Any = {"scores": scores}
    loss: Tensor = module(batch, torch.stack([torch.as_tensor(count) for count in own]))[0]
    return loss
