"""What a task is: all that training, scoring and predicting do not know of it.

    files ─read─► examples ─encode─► samples ─batch─► (network) ─► outputs ─loss─► what training differentiates
                                                                   outputs ─answers, decode─► predictions ─score─► metrics

A **kind** of task is a subclass of `Task` in a file of its own (`model/tasks/kinds/`); a task is an instance of one, a row of
`model.tasks.table.TASKS`. Nothing outside of a kind's file looks into its examples, outputs, answers or
predictions: labels may be numbers, spans, a tag a word, or a choice among sequences.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from model.data.batch import Batch
from model.data.layouts import Kind
from model.families.config import ModelConfig
from model.families.models import Backbone
from model.tasks.options import TaskOptions
from pipeline.core.errors import UsageError
from pipeline.tokenizer.tokenizer import Tokenizer

Ints = npt.NDArray[np.int64]
Meaning = Mapping[str, Any]  # what a trained network's outputs mean, as JSON: it goes into the checkpoint
Figures = dict[str, float]


class Examples(Protocol):
    """One split as it stands in its files, in their order.

    Attributes:
        where: what was read, for messages.
        dropped: how many examples were left out on purpose, by reason.
        labelled: whether their answers are known.
    """

    @property
    def where(self) -> str: ...
    @property
    def dropped(self) -> Mapping[str, int]: ...
    @property
    def labelled(self) -> bool: ...
    def __len__(self) -> int: ...


class Samples(Protocol):
    """One split as the model reads it. A sample is what batches are counted in: an example, or a part of one.

    Attributes:
        lengths: the pieces of each, int64 [n].
        truncated: how many examples lost pieces to the greatest length.
        lost: how many answers are in the files and cannot be given by any sample, by reason.
    """

    @property
    def lengths(self) -> Ints: ...
    @property
    def truncated(self) -> int: ...
    @property
    def lost(self) -> Mapping[str, int]: ...
    def __len__(self) -> int: ...

    def batch(self, chosen: Sequence[int] | Ints, layout: Kind) -> Batch:
        """The samples of these numbers as the network reads them, on the CPU; with what the loss needs, where that is known.

        Args: layout: how the tokens lie on their way through the encoder, see `model.data.layouts`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A batch's loss.

    Attributes:
        total: fp32 scalar, nats or the kind's own unit, differentiable: summed over what `Task.count` counts.
        correct: scalar: how many of these were right.
    """

    total: Tensor
    correct: Tensor


E = TypeVar("E", bound=Examples)
P = TypeVar("P")


class Task(abc.ABC, Generic[E, P]):
    """A task: its files, its network's head, loss, decoding and metrics.

    Args:
        name: as in `TASKS`.
        options: what is said about its files and its answers.
        metrics: of its row; empty: the kind's own.

    Attributes:
        metrics: the names of the figures that `score` gives; the first one is the task's score. Higher is better.
        source: what `read` reads: `data`, files that the user names, or `corpus`, a corpus artifact.
        files: what the user must give, for messages.
        max_length: the most pieces of a sequence where the user says nothing.
        predictions: the file that `write` writes for a user to read.
    """

    metrics: tuple[str, ...] = ()
    source: Literal["data", "corpus"] = "data"
    files: str = ""
    max_length: int = 128
    predictions: str = "predictions.tsv"

    def __init__(self, name: str, options: TaskOptions, metrics: tuple[str, ...] = ()) -> None:
        self.name, self.options = name, options
        self.metrics = metrics or self.metrics

    @abc.abstractmethod
    def read(self, path: str, split: str, limit_per_class: int | None) -> E:
        """The examples of one split: `train`, `dev`, `test`, or another one that the task has.

        Args:
            path: the directory of its files, or the split's file itself.

        Raises:
            UsageError: the limit means nothing to this task.
            DataError: a file is missing, empty or malformed (the message names file and line).
        """

    def refuse_limit(self, limit_per_class: int | None, remedy: str) -> None:
        """Of a kind without classes: raises UsageError where a limit was given. Args: remedy: the end of the sentence."""
        if limit_per_class is not None:
            raise UsageError(f"limit_per_class ({limit_per_class}) means nothing to task {self.name}{remedy}")

    @abc.abstractmethod
    def meaning(self, train: E) -> Meaning:
        """What the outputs of a network that is trained on these examples will mean."""

    @abc.abstractmethod
    def heads(self, meaning: Meaning) -> dict[str, Any]:
        """What stands on the encoder, as a checkpoint's `heads` says it."""

    def balance(self, train: E) -> E:
        """The examples with weights that let their classes count alike in the loss, 1 on average.

        `count` does not change with them: a step's loss is the mean over its examples of weight times loss, however it is cut.

        Raises:
            UsageError: the task has no classes.
        """
        raise UsageError(f"class_weights (balanced) means nothing to task {self.name}, which has no classes; leave it out")

    def adopt(self, examples: E, meaning: Meaning) -> E:
        """The examples as a network of that meaning sees them, such as with its numbers of their labels.

        Raises:
            DataError: an answer is none that the network can give.
        """
        del meaning
        return examples

    @abc.abstractmethod
    def encode(self, examples: E, tokenizer: Tokenizer, max_length: int) -> Samples:
        """The examples as pieces, at most `max_length` a sequence, special tokens included."""

    @abc.abstractmethod
    def network(self, backbone: Backbone, config: ModelConfig, meaning: Meaning, dropout: float) -> nn.Module:
        """The module to train: it takes `encoder` and what else it needs of the backbone, and puts its head beside them.

        The backbone's parts keep their names, `encoder` and `pooler`. The head's weights are set afterwards.
        """

    @abc.abstractmethod
    def count(self, batch: Mapping[str, Any]) -> int:
        """What the loss of a batch is summed over, known before the network runs: its examples, its words …"""

    @abc.abstractmethod
    def loss(self, outputs: Any, batch: Mapping[str, Any]) -> Loss:
        """The loss of what the network said to a batch."""

    @abc.abstractmethod
    def answers(self, outputs: Any, batch: Mapping[str, Any]) -> Sequence[Any]:
        """What of the outputs `decode` needs, one a sample of the batch, in numpy or plain Python: it may travel between ranks."""

    @abc.abstractmethod
    def decode(self, answers: Sequence[Any], examples: E, samples: Samples) -> P:
        """The predictions for all examples. Args: answers: one a sample, in their order."""

    @abc.abstractmethod
    def score(self, examples: E, predictions: P) -> Figures:
        """The task's metrics by name, of labelled examples."""

    def settled(self, examples: E, predictions: P) -> dict[str, Any]:
        """Options of decoding that the dev split decides, such as a threshold; they go into the checkpoint."""
        del examples, predictions
        return {}

    def baselines(self, examples: E) -> Figures:
        """What is reached without looking at the inputs, such as by saying the most frequent class, in the unit of the task's score.

        `flows.report.gathered.BASELINES` lists the names.
        """
        del examples
        return {}

    def facts(self, examples: E) -> dict[str, Any]:
        """What else there is to know about a split, as JSON."""
        del examples
        return {}

    def details(self, examples: E, predictions: P, *, seed: int, resamples: int) -> dict[str, Any]:
        """What an evaluation tells beside the metrics, as JSON, of labelled examples; `interval` where there are any.

        Args: seed, resamples: of bootstrap intervals.
        """
        del examples, predictions, seed, resamples
        return {}

    @abc.abstractmethod
    def write(self, directory: str, examples: E, predictions: P) -> None:
        """Write the file `predictions` in that directory, and what else belongs to it."""


def task_source(task: Task[Any, Any], data: str | None, corpus: str | None) -> str:
    """The path that the task reads.

    Raises:
        UsageError: it was not given.
    """
    path = corpus if task.source == "corpus" else data
    if path is None:
        raise UsageError(f"task {task.name} needs {task.source} (found none); name {task.files} with --{task.source}")
    return path
