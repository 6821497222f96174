"""A fine-tuned checkpoint in memory that gives texts their labels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from model import checkpoint
from model.tasks.classification import Classification
from model.tasks.heads import trained_network
from model.tasks.labelled_texts import LabelledTexts
from model.tasks.objective import TaskObjective
from model.tasks.predict import predict
from model.tasks.split import encoded
from model.tasks.table import load_task
from model.train.distributed import World
from pipeline import tokenizer
from pipeline.core.errors import UsageError


class Labeller:
    """A checkpoint of a classification task.

    Raises:
        UsageError: the checkpoint was not fine-tuned, or its task gives no labels to texts.
        DataError: there is no checkpoint at that path, or it is damaged.
    """

    def __init__(self, path: str) -> None:
        loaded = checkpoint.load(path)
        if loaded.task is None:
            raise UsageError(f"{path} was pretrained, not fine-tuned (it names no task); name one that `cloze finetune` made")
        self.meaning = loaded.task
        task = load_task(str(self.meaning["name"]))
        if not isinstance(task, Classification):
            raise UsageError(f"task {task.name} of {path} gives no labels to texts; use `cloze evaluate`")
        self.task = task
        self.pieces = tokenizer.load(loaded.tokenizer)
        self.world = World(rank=0, size=1, device=torch.device("cpu"))
        network = trained_network(task, loaded.model, loaded.state, self.meaning, loaded.path)
        self.objective = TaskObjective(task, network, "fp32", self.world.device)

    def label(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[tuple[str, float]]:
        """The likeliest label of each text (or pair of texts) and its probability."""
        if not texts:
            return []
        names = tuple(str(name) for name in self.meaning["labels"])
        examples = LabelledTexts(texts=texts, text_pairs=pairs, labels=None, label_names=names)
        split = encoded(self.task, examples, self.meaning, self.pieces, int(self.meaning["max_length"]))
        answers = predict(self.objective, split.samples, self.world)
        found = self.task.decode(answers, examples, split.samples)
        return [(names[best], float(row[best])) for best, row in zip(found.argmax(axis=1), found, strict=True)]
