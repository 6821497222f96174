"""What fine-tuning gives the trainer: a classifier with its loss, and the dev split's scores on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from model.data.batch import move
from model.data.layouts import layout_for
from model.data.prefetch import prefetched
from model.tasks.encode import IGNORE, Encoded, blank, collate, evaluation_batches
from model.tasks.heads import SequenceClassifier
from model.tasks.metrics import score
from model.train.distributed import World
from model.train.interfaces import Interrupted, Trained
from model.train.precision import DTYPES, Precision, autocast

SHARE = 0.05  # of the training's time, for scores on the way
FORWARD_COST = 1 / 3  # of an example's training
FEW = 1024  # examples that are always scored: it takes seconds

Probabilities = npt.NDArray[np.float32]


class Classification(Trained):
    """A classifier and its cross-entropy."""

    def __init__(self, model: SequenceClassifier, precision: Precision) -> None:
        super().__init__()
        self.names = ("classification",)
        self.model: SequenceClassifier = model
        self.precision = precision

    def targets(self, batch: Mapping[str, Any]) -> list[int]:
        return [int((batch["labels"] != IGNORE).sum())]

    def loss(self, batch: Mapping[str, Any], counts: Tensor) -> tuple[Tensor, Tensor]:
        logits, labels = self.predict(batch), batch["labels"]
        summed = nn.functional.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum")
        correct = (logits.argmax(dim=-1) == labels).sum()
        return summed / counts[0], torch.stack([summed.detach().double(), correct.double()])[:, None]

    def predict(self, batch: Mapping[str, Any]) -> Tensor:
        """Logits, fp32 [B, labels]."""
        with autocast(self.precision, batch["input_ids"].device.type):
            logits: Tensor = self.model(batch)
        return logits


@torch.no_grad()
def predict(
    trained: Classification, data: Encoded, world: World, stop_asked: Callable[[], bool] = lambda: False
) -> Probabilities:
    """The probabilities [n, labels] of every example, in the examples' order, on all ranks. Every rank calls it.

    Each rank takes every `world.size`th batch, and the batches are the same on any number of ranks, so nothing depends on it.

    Raises:
        Interrupted: a rank was asked to stop.
    """
    probabilities = torch.zeros(len(data), trained.model.classifier.out_features)
    batches = evaluation_batches(data.lengths)
    rounds = range(0, len(batches), world.size)
    mine = [batches[start + world.rank] if start + world.rank < len(batches) else None for start in rounds]
    layout = layout_for([trained.model], world.device, DTYPES[trained.precision])
    # all ranks run the model as often as the others
    collated = (blank(data) if chosen is None else collate(data, chosen, layout) for chosen in mine)
    training = trained.training
    trained.eval()
    try:
        with prefetched(collated, world.device) as ready:
            for chosen, batch in zip(mine, ready, strict=True):
                if world.total([int(stop_asked())])[0]:
                    raise Interrupted
                found = trained(move(batch, world.device)).softmax(dim=-1).cpu()
                if chosen is not None:
                    probabilities[torch.from_numpy(chosen)] = found
    finally:
        trained.train(training)
    whole: Probabilities = world.total_of(probabilities).numpy()
    return whole


@dataclass(slots=True, kw_only=True)
class DevScores:
    """The task's metrics on the dev split after every epoch; see `model.train.interfaces.Measure`.

    Attributes:
        data: the encoded dev split, with labels.
        metrics: their names, the main one first.
        steps: of the whole run.
        every: steps an epoch.
        examples: of the training split.
        latest: the probabilities of the newest measurement, and its step.
    """

    trained: Classification
    data: Encoded
    metrics: tuple[str, ...]
    world: World
    steps: int
    every: int
    examples: int
    latest: tuple[int, Probabilities] | None = field(default=None, repr=False)
    higher_is_better: bool = True

    @property
    def best(self) -> str:
        return f"dev_{self.metrics[0]}"

    def due(self, step: int) -> bool:
        """After every epoch, where the split is small beside the training split; else after the last."""
        affordable = len(self.data) <= FEW or len(self.data) * FORWARD_COST <= SHARE * self.examples
        return step == self.steps or (affordable and step % self.every == 0)

    def __call__(self, step: int, stop_asked: Callable[[], bool]) -> dict[str, float]:
        found = predict(self.trained, self.data, self.world, stop_asked)
        self.latest = step, found
        return {f"dev_{name}": value for name, value in self.scores(found).items()}

    def scores(self, probabilities: Probabilities) -> dict[str, float]:
        """The metrics by name."""
        assert self.data.labels is not None
        return score(self.metrics, self.data.labels, probabilities.argmax(axis=1))

    def probabilities(self) -> Probabilities:
        """Those of the trained weights, scored anew where a resumed training had nothing left to do. Every rank calls it."""
        if self.latest is not None and self.latest[0] == self.steps:
            return self.latest[1]
        return predict(self.trained, self.data, self.world)
