"""One split of a task: read, numbered as the model numbers it, and cut into pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from model.tasks.task import Examples, Meaning, Samples, Task
from pipeline.core.errors import DataError
from pipeline.core.stage import Build
from pipeline.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Examples as read, and as the model reads them."""

    examples: Examples
    samples: Samples

    def count(self, build: Build, name: str) -> None:
        """Say in the build's counters what was read, kept, dropped and truncated."""
        build.counters[f"read/{name}"] += len(self.examples) + sum(self.examples.dropped.values())
        build.counters[f"kept/{name}"] += len(self.examples)
        build.counters[f"truncated/{name}"] += self.samples.truncated
        for reason, number in self.examples.dropped.items():
            build.counters[f"dropped/{reason}"] += number
        for reason, number in self.samples.lost.items():
            build.counters[f"lost/{name}/{reason}"] += number


def encoded(task: Task[Any, Any], examples: Examples, meaning: Meaning, pieces: Tokenizer, max_length: int) -> Split:
    """The split of these examples, as a network of that meaning reads it.

    Raises:
        DataError: an answer is none that the network can give.
    """
    adopted = task.adopt(examples, meaning)
    return Split(examples=adopted, samples=task.encode(adopted, pieces, max_length))


def check_labelled(examples: Examples, name: str) -> None:
    """Refuse a split that training or scoring needs the answers of."""
    if not examples.labelled:
        raise DataError(f"{examples.where} has no labels; give the {name} split its labels")
    if not len(examples):
        raise DataError(f"{examples.where} has no examples; give the {name} split some")
