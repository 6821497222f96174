"""What the engine runs forward: model and objectives in one module, from a batch to the loss to differentiate.

Each micro-batch's loss is, over the objectives, the sum of (its summed loss / the count of the whole step over all ranks
and micro-batches). Added up they are the loss of the global batch, however it was cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from model.data.collate import Batch, blank
from model.objectives import Objective, objectives, total_loss
from model.train.precision import Precision, autocast
from pipeline.schema import NO_PAIR

LABELS = {"mlm": "masked_labels"}  # the labels that an objective counts; the pair tasks' are `pair_labels`


def targets(batch: Batch, names: Sequence[str]) -> list[int]:
    """How many predictions each objective will make on a collated batch, known before the model runs."""
    return [int((batch[LABELS.get(name, "pair_labels")] != NO_PAIR).sum()) for name in names]


class Scoring(nn.Module):
    """Model and objectives.

    Args:
        model: a family's pretraining model.
        names: the objectives.
        precision: of the forward pass.
        compiled: run it through torch.compile, for batches of one fixed shape.
        device_type: what it will be compiled for.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str],
        precision: Precision,
        compiled: bool = False,
        device_type: str = "cpu",
    ) -> None:
        super().__init__()
        self.model = model
        self.names = tuple(names)
        self.precision = precision
        self._objectives: tuple[Objective, ...] = objectives(names)
        self._score = self._plain
        if compiled:
            # On a CPU inductor's own random numbers make dropout slower than it is without compiling; torch's are as fast as
            # ever, and the same as without.
            self._score = torch.compile(self._plain, dynamic=False, options={"fallback_random": device_type == "cpu"})

    def forward(self, batch: Mapping[str, Tensor], counts: Tensor) -> tuple[Tensor, Tensor]:
        """Score a batch.

        Args:
            batch: as `model.data.collate` makes it.
            counts: float [objectives], what each summed loss is divided by, see above.

        Returns:
            The loss to differentiate, fp32 scalar; and, without gradient, float64 [2, objectives]: each objective's summed
            loss in nats, and how many answers were right.
        """
        run = self._score if self.training else self._plain  # held-out batches come in shapes of their own
        loss, figures = run(batch, counts)
        return loss, figures

    def _plain(self, batch: Mapping[str, Tensor], counts: Tensor) -> tuple[Tensor, Tensor]:
        with autocast(self.precision, counts.device.type):
            outputs = self.model(batch)
        sums = [objective(outputs, batch) for objective in self._objectives]
        loss = total_loss(sums, {item.name: counts[number] for number, item in enumerate(sums)})
        summed = torch.stack([item.total.detach().double() for item in sums])
        correct = torch.stack([item.correct.double() for item in sums])
        return loss, torch.stack([summed, correct])


def freeze_unused(scoring: Scoring, pad: int) -> list[str]:
    """Stop training what no objective reaches (the pair head of a dataset without pairs); returns the parameters' names.

    They have no gradient. Left alone they would still decay at ZeRO 1 to 3, which update flat slices of everything, and not
    at stage 0: the result would depend on how training is spread.
    """
    training = scoring.training
    loss, _ = scoring.eval()(blank(pad=pad), torch.ones(len(scoring.names)))
    loss.backward()
    scoring.train(training)
    unused = [name for name, parameter in scoring.model.named_parameters() if parameter.grad is None]
    for name, parameter in scoring.model.named_parameters():
        parameter.grad = None
        parameter.requires_grad_(name not in unused)
    return unused
