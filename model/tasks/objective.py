"""What is trained in fine-tuning: a task's network and its loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from model.tasks.source import BLANK
from model.tasks.task import Task
from model.train.interfaces import Trained
from model.train.precision import Precision, autocast


class TaskObjective(Trained):
    """A `model.train.interfaces.Trained` with one objective, the task's: its figures are `train_loss` and `train_accuracy`.

    Attributes:
        task: whose network and loss it is.

    Args:
        model: the task's network.
        precision: of the forward pass.
    """

    names = ("train",)

    def __init__(self, task: Task[Any, Any], model: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.model = model
        self.task, self._precision = task, precision

    def targets(self, batch: Mapping[str, Tensor]) -> list[int]:
        return [0 if BLANK in batch else self.task.count(batch)]

    def loss(self, batch: Mapping[str, Tensor], counts: Tensor) -> tuple[Tensor, Tensor]:
        found = self.task.loss(self.predict(batch), batch)
        real = 0.0 if BLANK in batch else 1.0
        figures = torch.stack([found.total.detach().double(), found.correct.double()])[:, None]
        return real * found.total / counts[0], real * figures

    def predict(self, batch: Mapping[str, Tensor]) -> Any:
        """The network's outputs."""
        with autocast(self._precision, batch["input_ids"].device.type):
            return self.model(batch)
