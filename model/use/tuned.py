"""A fine-tuned checkpoint in memory: examples in, its task's predictions out. The verbs answer, classify and tag stand on it."""

from __future__ import annotations

from typing import Any

import torch

from model import checkpoint
from model.tasks.heads import trained_network
from model.tasks.kinds.together import one_of
from model.tasks.objective import TaskObjective
from model.tasks.predict import predict
from model.tasks.split import encoded
from model.tasks.table import load_task
from model.tasks.task import Examples
from model.train.distributed import World
from pipeline import tokenizer
from pipeline.core.errors import UsageError


class Tuned:
    """A fine-tuned checkpoint of any task, on the CPU in fp32.

    Attributes:
        task: the task, with the options that it was trained with.
        meaning: what its outputs mean, as the checkpoint says it.
        truncated: how many examples lost pieces to the greatest length so far.

    Raises:
        UsageError: the checkpoint was not fine-tuned, or on several tasks and none is named.
        DataError: there is no checkpoint at that path, or it is damaged.
    """

    def __init__(self, path: str, task: str | None = None) -> None:
        with checkpoint.held(path) as directory:
            loaded = checkpoint.load(directory)
            self.pieces = tokenizer.load(loaded.tokenizer)
        if loaded.task is None:
            raise UsageError(f"{path} was pretrained, not fine-tuned (it names no task); name one that `cloze finetune` made")
        self.path = path
        self.meaning, state = one_of(loaded.task, loaded.state, task, path)
        self.task = load_task(str(self.meaning["name"]), self.meaning.get("options"))
        self._world = World(rank=0, size=1, device=torch.device("cpu"))
        network = trained_network(self.task, loaded.model, state, self.meaning, loaded.path)
        self.truncated = 0
        self._objective = TaskObjective(self.task, network, "fp32", self._world.device)

    def predictions(self, examples: Examples) -> Any:
        """The task's predictions for these examples, as its `decode` gives them."""
        split = encoded(self.task, examples, self.meaning, self.pieces, int(self.meaning["max_length"]))
        self.truncated += split.samples.truncated
        answers = predict(self._objective, split.samples, self._world)
        return self.task.decode(answers, split.examples, split.samples)
