"""What is trained in fine-tuning: a task's network and its loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from model.data.layouts import Kind, layout_for
from model.tasks.source import BLANK
from model.tasks.task import Task
from model.train.interfaces import Trained
from model.train.precision import DTYPES, Precision, autocast


class TaskObjective(Trained):
    """A `model.train.interfaces.Trained` with one objective, the task's: its figures are `train_loss` and `train_accuracy`.

    Attributes:
        task: whose network and loss it is.
        layout: of the batches that suit the network on its device, see `model.data.layouts`.

    Args:
        model: the task's network.
        precision: of the forward pass.
        device: what it will run on.
    """

    names = ("train",)

    def __init__(self, task: Task[Any, Any], model: nn.Module, precision: Precision, device: torch.device) -> None:
        super().__init__()
        self.model = model
        self.task, self._precision = task, precision
        self.layout: Kind = layout_for([model], device, DTYPES[precision])

    def targets(self, batch: Mapping[str, Any]) -> list[int]:
        return [0 if BLANK in batch else self.task.count(batch)]

    def loss(self, batch: Mapping[str, Any], counts: Tensor) -> tuple[Tensor, Tensor]:
        found = self.task.loss(self.predict(batch), batch)
        real = 0.0 if BLANK in batch else 1.0
        figures = torch.stack([found.total.detach().double(), found.correct.double()])[:, None]
        return real * found.total / counts[0], real * figures

    def predict(self, batch: Mapping[str, Any]) -> Any:
        """The network's outputs."""
        with autocast(self._precision, batch["input_ids"].device.type):
            return self.model(batch)
