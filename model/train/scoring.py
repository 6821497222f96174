"""What is trained in pretraining: model and objectives in one module, from a batch to the loss to differentiate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from model.families.pretraining import PretrainingModel
from model.layers.lazy_logits import leave_logits
from model.objectives import LossSum, objectives, total_loss
from model.train.interfaces import Trained
from model.train.precision import Precision, autocast
from model.train.teacher import Teacher


class Scoring(Trained):
    """Model and objectives.

    Args:
        model: a family's pretraining model.
        names: the objectives.
        precision: of the forward pass.
        compiled: run it through torch.compile, for batches of one fixed shape.
        device_type: what it will be compiled for.
        weights: of the objectives in the loss; 1 where one is not named.
        teacher: whose answers to a batch the objectives see beside the model's.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str],
        precision: Precision,
        compiled: bool = False,
        device_type: str = "cpu",
        weights: Mapping[str, float] | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.names = tuple(names)
        self.precision = precision
        self.objectives = objectives(names)
        if isinstance(model, PretrainingModel):
            model.everywhere = any(objective.everywhere for objective in self.objectives)
        if not any(objective.reads_logits for objective in self.objectives):
            leave_logits(model)
        self.weights = dict(weights or {})
        self.teacher = teacher
        self.detail_names: tuple[str, ...] = ()  # of what `predict` gives last; known after the first held-out batch
        self._compiled = self._loss
        if compiled:
            self._compiled = torch.compile(self._loss, dynamic=False, options={"fallback_random": device_type == "cpu"})
            if device_type == "cpu":  # what is kept for the backward pass costs more than to compute it again, masks above all
                torch._functorch.config.aggressive_recomputation = True

    def targets(self, batch: Mapping[str, Any]) -> list[int]:
        """How many predictions each objective will make on a collated batch, known before the model runs."""
        return [objective.count(batch) for objective in self.objectives]

    def chance(self, vocabulary: int) -> float | None:
        """What guessing at random costs: the sum over objectives, as log lines give it; None where one of them has no such figure.

        An objective's weight counts in the gradient and not in the figures, which stay nats a prediction.
        """
        parts = [math.nan if item.chance is None else item.chance(vocabulary) for item in self.objectives]
        whole = sum(parts)
        return None if math.isnan(whole) else whole

    def loss(self, batch: Mapping[str, Any], counts: Tensor) -> tuple[Tensor, Tensor]:
        """As `Trained.loss`; compiled while training."""
        return (self._compiled if self.training else self._loss)(batch, counts)

    def uncompiled(self, batch: Mapping[str, Any], counts: Tensor) -> tuple[Tensor, Tensor]:
        """As `loss`, in whatever shape the batch comes."""
        return self._loss(batch, counts)

    def _loss(self, batch: Mapping[str, Any], counts: Tensor) -> tuple[Tensor, Tensor]:
        sums, _ = self._sums(batch)
        loss = total_loss(sums, {item.name: counts[number] for number, item in enumerate(sums)}, self.weights)
        return loss, _figures(sums)

    def predict(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """The figures of `loss` (never compiled, as held-out batches come in shapes of their own), and finer ones.

        Returns:
            float64 [2, objectives] as of `loss`, and float64 [2, details]: the sums and counts of the objectives' finer figures,
            named by `detail_names`.
        """
        sums, outputs = self._sums(batch)
        figures = _figures(sums)
        found = {
            f"{objective.name}_{name}": figure
            for objective in self.objectives
            if objective.details is not None
            for name, figure in objective.details(outputs, batch).items()
        }
        self.detail_names = tuple(found)
        if not found:
            return figures, figures.new_zeros(2, 0)
        return figures, torch.stack([torch.stack(figure) for figure in found.values()], dim=1).double()

    def _sums(self, batch: Mapping[str, Any]) -> tuple[list[LossSum], dict[str, Tensor]]:
        """What each objective makes of the model's outputs, and these."""
        with autocast(self.precision, batch["input_ids"].device.type):
            outputs: dict[str, Tensor] = self.model(batch)
            if self.teacher is not None:
                outputs |= self.teacher(batch)
        return [objective.score(outputs, batch) for objective in self.objectives], outputs


def _figures(sums: Sequence[LossSum]) -> Tensor:
    """Float64 [2, objectives], without gradient: summed losses, and how many answers were right."""
    summed = torch.stack([item.total.detach().double() for item in sums])
    return torch.stack([summed, torch.stack([item.correct.double() for item in sums])])
