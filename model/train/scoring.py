"""What the engine runs forward: model and objectives in one module, from a batch to the loss to differentiate.

Each micro-batch's loss is, over the objectives, the sum of (its summed loss / the count of the whole step over all ranks
and micro-batches). Added up they are the loss of the global batch, however it was cut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from model.data.batch import Batch
from model.data.collate import blank
from model.families.pretraining import PretrainingModel
from model.objectives import objectives, total_loss
from model.train.precision import Precision, autocast
from model.train.teacher import Teacher


class Scoring(nn.Module):
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
        self.weights = dict(weights or {})
        self.teacher = teacher
        self.detail_names: tuple[str, ...] = ()  # of what forward's third output holds; known after the first held-out batch
        self._train = self._loss
        if compiled:
            self._train = torch.compile(self._loss, dynamic=False, options={"fallback_random": device_type == "cpu"})
            if device_type == "cpu":  # what is kept for the backward pass costs more than to compute it again, masks above all
                torch._functorch.config.aggressive_recomputation = True

    def targets(self, batch: Batch) -> list[int]:
        """How many predictions each objective will make on a collated batch, known before the model runs."""
        return [objective.count(batch) for objective in self.objectives]

    def chance(self, vocabulary: int) -> float | None:
        """What guessing at random costs: the weighted sum over objectives; None where one of them has no such figure."""
        parts = [math.nan if item.chance is None else item.chance(vocabulary) for item in self.objectives]
        whole = sum(self.weights.get(name, 1.0) * part for name, part in zip(self.names, parts, strict=True))
        return None if math.isnan(whole) else whole

    def forward(self, batch: Mapping[str, Tensor], counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Score a batch.

        Args:
            batch: as `model.data.collate` makes it.
            counts: float [objectives], what each summed loss is divided by, see above.

        Returns:
            The loss to differentiate, fp32 scalar. Without gradient, float64: [2, objectives], each objective's summed loss in
            nats and how many answers were right; and, of a model that is not in training, [2, details], the sums and
            counts of the objectives' finer figures, named by `detail_names`.
        """
        run = self._train if self.training else self._score  # held-out batches come in shapes of their own
        loss, figures, details = run(batch, counts)
        return loss, figures, details

    def _loss(self, batch: Mapping[str, Tensor], counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        loss, figures, _ = self._scored(batch, counts)
        return loss, figures, figures.new_zeros(2, 0)

    def _score(self, batch: Mapping[str, Tensor], counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        loss, figures, outputs = self._scored(batch, counts)
        found = {
            f"{objective.name}_{name}": figure
            for objective in self.objectives
            if objective.details is not None
            for name, figure in objective.details(outputs, batch).items()
        }
        self.detail_names = tuple(found)
        if not found:
            return loss, figures, figures.new_zeros(2, 0)
        return loss, figures, torch.stack([torch.stack(figure) for figure in found.values()], dim=1).double()

    def _scored(self, batch: Mapping[str, Tensor], counts: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        with autocast(self.precision, counts.device.type):
            outputs: dict[str, Tensor] = self.model(batch)
            if self.teacher is not None:
                outputs |= self.teacher(batch)
        sums = [objective.score(outputs, batch) for objective in self.objectives]
        loss = total_loss(sums, {item.name: counts[number] for number, item in enumerate(sums)}, self.weights)
        summed = torch.stack([item.total.detach().double() for item in sums])
        correct = torch.stack([item.correct.double() for item in sums])
        return loss, torch.stack([summed, correct]), outputs


def freeze_unused(scoring: Scoring, pad: int) -> list[str]:
    """Stop training what no objective reaches (the pair head of a dataset without pairs); returns the parameters' names.

    They have no gradient. Left alone they would still decay at ZeRO 1 to 3, which update flat slices of everything, and not
    at stage 0: the result would depend on how training is spread.
    """
    training = scoring.training
    loss, *_ = scoring.eval()({**blank(pad=pad), "mask_id": torch.tensor(-1)}, torch.ones(len(scoring.names)))
    loss.backward()
    scoring.train(training)
    unused = [name for name, parameter in scoring.model.named_parameters() if parameter.grad is None]
    for name, parameter in scoring.model.named_parameters():
        parameter.grad = None
        parameter.requires_grad_(name not in unused)
    return unused
