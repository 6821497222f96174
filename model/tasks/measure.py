"""The score on the dev split, on the way and at the end."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from model.tasks.features import plain
from model.tasks.objective import TaskObjective
from model.tasks.predict import predict
from model.tasks.split import Split
from model.tasks.task import Figures
from model.train.distributed import World
from model.train.pace import Moment

BUDGET = 0.05  # the share of the training time that scores on the way may take
FORWARD = 1 / 3  # what a sample costs that is only predicted, of one that is trained on
FEW = 1024  # samples that are always scored: it takes seconds


class DevScore:
    """A `model.train.interfaces.Measure`: the task's metrics on the whole dev split, under names such as `dev_accuracy`.

    It is due at the end of every epoch, or of every n-th where the dev split is too large beside the train split for that.
    """

    higher_is_better = True

    def __init__(self, objective: TaskObjective, train: Split, dev: Split, world: World, epoch: int) -> None:
        """Args: epoch: the steps of one."""
        self._objective, self._dev, self._world = objective, dev, world
        self.best = f"dev_{objective.task.metrics[0]}"
        share = FORWARD * float(dev.samples.lengths.sum()) / float(train.samples.lengths.sum())
        self._every = epoch * (1 if len(dev.samples) <= FEW else max(1, math.ceil(share / BUDGET)))
        self._newest: tuple[int, Any] | None = None

    def due(self, step: int, moment: Moment) -> bool:
        return step % self._every == 0

    def __call__(self, step: int, moment: Moment, stop_asked: Callable[[], bool]) -> Figures:
        return self._score(step, stop_asked)

    def _score(self, step: int, stop_asked: Callable[[], bool]) -> Figures:
        task, dev = self._objective.task, self._dev
        answers = predict(self._objective, dev.samples, self._world, stop_asked)
        found = task.decode(answers, dev.examples, plain(dev.samples))
        self._newest = step, found
        return {f"dev_{name}": value for name, value in task.score(dev.examples, found).items()}

    def predictions(self, step: int) -> Any:
        """The predictions of the network after step `step`, the last one that was done. Every rank calls it."""
        if self._newest is None or self._newest[0] != step:  # a training that was resumed had nothing left to do
            self._score(step, lambda: False)
        assert self._newest is not None
        return self._newest[1]
