"""Fine-tuned checkpoint in memory, used by the commands answer, classify and tag."""

from __future__ import annotations

from typing import Any

import torch

from cloze.core.errors import UsageError
from cloze.model import checkpoint
from cloze.model.tasks.heads import trained_network
from cloze.model.tasks.kinds.multitask import select_task
from cloze.model.tasks.predict import predict
from cloze.model.tasks.source import TaskObjective
from cloze.model.tasks.table import load_task
from cloze.model.tasks.task import Examples, encoded
from cloze.model.train.distributed import World
from cloze.pipeline import tokenizer


class FinetunedModel:
    """Fine-tuned checkpoint of any task, on the CPU in fp32.

    Attributes:
        task: task with the options of its training.
        meaning: task metadata from the checkpoint.
        truncated: number of examples truncated so far.

    Raises:
        UsageError: the checkpoint was not fine-tuned, or on several tasks and none is named.
        DataError: the checkpoint is missing or damaged.
    """

    def __init__(self, path: str, task: str | None = None) -> None:
        with checkpoint.resolve_pinned(path) as directory:
            loaded = checkpoint.load(directory)
            self.pieces = tokenizer.load(loaded.tokenizer)
        if loaded.task is None:
            raise UsageError(
                f"{path} was pretrained, not fine-tuned (it names no task); name one that `cloze "
                f"finetune` made"
            )
        self.path = path
        self.meaning, state = select_task(loaded.task, loaded.state, task, path)
        self.task = load_task(str(self.meaning["name"]), self.meaning.get("options"))
        self._world = World(rank=0, size=1, device=torch.device("cpu"))
        network = trained_network(self.task, loaded.model, state, self.meaning, loaded.path)
        self.truncated = 0
        self._objective = TaskObjective(self.task, network, "fp32", self._world.device)

    def predictions(self, examples: Examples) -> Any:
        """Return the task's predictions for examples, as its `decode` gives them."""
        split = encoded(
            self.task, examples, self.meaning, self.pieces, int(self.meaning["max_length"])
        )
        self.truncated += split.samples.truncated
        answers = predict(self._objective, split.samples, self._world)
        return self.task.decode(answers, split.examples, split.samples)
