"""The interface of a task, used by training, evaluation and inference.

    files -read-> examples -encode-> samples -batch-> (network) -> outputs -loss-> training
    outputs -select_outputs, decode-> predictions -score-> metrics

A task kind is a subclass of `Task` in its own module (`model/tasks/kinds/`); a task is an instance,
a row of `cloze.model.tasks.table.TASKS`. Only the kind's module reads its examples, outputs,
answers and predictions: numbers, spans, tags or choices.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from cloze.core.errors import DataError, UsageError
from cloze.core.ragged import I64
from cloze.core.stages.stage import BuildContext
from cloze.model.checkpoint import LoadedCheckpoint
from cloze.model.data.layouts import LayoutKind
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import Backbone
from cloze.model.layers.batch import Batch
from cloze.model.tasks.options import TaskOptions
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

# Meaning of a network's outputs, as JSON; stored in the checkpoint.
TaskMetadata = Mapping[str, Any]
Metrics = dict[str, float]


class Examples(Protocol):
    """Split as in its files, in order.

    Attributes:
        where: source for messages.
        dropped: number of examples dropped on purpose, by reason.
        labelled: true if answers are known.
    """

    @property
    def where(self) -> str: ...
    @property
    def dropped(self) -> Mapping[str, int]: ...
    @property
    def labelled(self) -> bool: ...
    def __len__(self) -> int: ...


class Samples(Protocol):
    """Split as the model reads it; a sample is an example or a part of one.

    Attributes:
        lengths: int64 [n], tokens of each sample.
        dropped_counts: number of answers in the files that no sample can give, by reason.
    """

    @property
    def lengths(self) -> I64: ...
    @property
    def truncated(self) -> int: ...
    @property
    def dropped_counts(self) -> Mapping[str, int]: ...
    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int] | I64, layout: LayoutKind) -> Batch:
        """Return the batch of these samples on the CPU, with the known inputs of the loss."""
        ...


@runtime_checkable
class Related(Protocol):
    """Samples that are compared with others of their step, such as in-batch negatives."""

    def part(self, indices: I64, begin: int, end: int, layout: LayoutKind) -> Batch:
        """Return the batch of `indices[begin:end]`, not empty, of a step with all `indices`."""
        ...


def part_of(samples: Samples, indices: I64, begin: int, end: int, layout: LayoutKind) -> Batch:
    """Return the batch of `indices[begin:end]` of a step, see `Related`."""
    if isinstance(samples, Related):
        return samples.part(indices, begin, end, layout)
    return samples.batch(indices[begin:end], layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A model of an ensemble: rows of `Task.member_outputs`, and the split in its own tokens."""

    answers: Sequence[Any]
    samples: Samples


def mean_array(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the mean of arrays of one shape, in their dtype; the mean of equal arrays is exact."""
    mean = np.mean(arrays, axis=0, dtype=np.float64)
    return np.asarray(mean, dtype=arrays[0].dtype)


class Loss(NamedTuple):
    """Loss of a batch: an fp32 scalar with a gradient, and the number of correct items, a scalar.

    `total` is in nats or the kind's unit, summed over `Task.count` items.
    """

    total: Tensor
    correct: Tensor


E = TypeVar("E", bound=Examples)
P = TypeVar("P")
Outputs = Tensor | tuple[Tensor, ...]  # one row per sample in each


class Task(abc.ABC, Generic[E, P]):
    """Task: what it reads, its network, and its scores, in this order.

    Args:
        name: name in `TASKS`.
        options: options for files and answers; a subclass declares their type.
        metrics: metrics of its row; empty: the kind's.

    Attributes:
        metrics: names of the metrics of `score`; the first is the task's score. Higher is better.
        source: input of `read`: `data`, user files, or `corpus`, a corpus artifact.
        files: description of the expected files, for messages.
        max_length: default maximum tokens of a sequence.
        predictions: name of the predictions file for users.
    """

    metrics: tuple[str, ...] = ()
    source: Literal["data", "corpus"] = "data"
    files: str = ""
    max_length: int = 128
    predictions: str = "predictions.tsv"

    def __init__(self, name: str, options: TaskOptions, metrics: tuple[str, ...] = ()) -> None:
        self.name, self.options = name, options
        self.metrics = metrics or self.metrics

    def meaningless(self, option: str, why: str) -> UsageError:
        """Return the error for an option that this kind cannot follow."""
        return UsageError(f"{option} means nothing to task {self.name}{why}")

    # Reading

    @abc.abstractmethod
    def read(self, path: str, split: str, limit_per_class: int | None) -> E:
        """Read the examples of a split: `train`, `dev`, `test`, or another one of the task.

        Args:
            path: directory of the task's files, or the split's file.

        Raises:
            UsageError: the task does not support the limit.
            DataError: a file is missing, empty or malformed (the message names file and line).
        """

    def sources(self, path: str) -> list[tuple[str, TaskOptions]]:
        """Return the paths that `read` reads for `path`, with their options."""
        return [(path, self.options)]

    def refuse_limit(self, limit_per_class: int | None, remedy: str) -> None:
        """Raise UsageError for a limit in a kind without classes; `remedy` ends the message."""
        if limit_per_class is not None:
            raise self.meaningless(f"limit_per_class ({limit_per_class})", remedy)

    def balance_classes(self, train: E) -> E:
        """Return the examples with weights that balance the classes, 1 on average.

        `count` ignores weights: a step's loss is the mean of weight times loss over its examples,
        however it is split.

        Raises:
            UsageError: the task has no classes.
        """
        raise self.meaningless("class_weights (balanced)", ", which has no classes; leave it out")

    def align_labels(self, examples: E, metadata: TaskMetadata) -> E:
        """Return the examples for a network with this metadata, such as with its label numbers.

        Raises:
            DataError: the network cannot give an answer.
        """
        return examples

    @abc.abstractmethod
    def encode(self, examples: E, tokenizer: Tokenizer, max_length: int) -> Samples:
        """Tokenize the examples into sequences of at most `max_length` tokens."""

    # Network

    def open(
        self, build: BuildContext, start: LoadedCheckpoint, pieces: Tokenizer, most: int | None
    ) -> TaskMetadata:
        """Open the inputs of a training (`TaskKind.inputs`), which networks of this task then use.

        Args:
            start, pieces: checkpoint that the training starts from, and its tokenizer.
            most: maximum tokens of a sequence as given; None: the default.

        Returns:
            What follows for the metadata: `max_length`, and a kind's own entries.
        """
        return {"max_length": most or min(self.max_length, start.model.max_position_embeddings)}

    @abc.abstractmethod
    def metadata(self, train: E) -> TaskMetadata:
        """Return the metadata of a network that is trained on these examples."""

    @abc.abstractmethod
    def heads(self, metadata: TaskMetadata) -> dict[str, Any]:
        """Return the head in the form of a checkpoint's `heads`."""

    @abc.abstractmethod
    def network(
        self, backbone: Backbone, config: ModelConfig, metadata: TaskMetadata, dropout: float
    ) -> nn.Module:
        """Build the network: parts of the backbone under their names, and a head.

        The caller initializes the head.
        """

    def count(self, batch: Mapping[str, Any]) -> int:
        """Return the number of items that the loss sums over, such as examples or words."""
        return len(batch["labels"])

    @abc.abstractmethod
    def loss(self, outputs: Any, batch: Mapping[str, Any]) -> Loss:
        """Return the loss of the network's outputs for a batch."""

    def soft_loss(
        self, outputs: Any, teacher: Any, batch: Mapping[str, Any], temperature: float
    ) -> Loss:
        """Return the loss of the network's outputs against a teacher's, summed as `loss`.

        Raises:
            UsageError: the outputs of this kind are not comparable.
        """
        why = ", whose outputs are no distributions; set it to 0, or leave the teacher out"
        raise self.meaningless("distill.soft", why)

    # Scores

    @abc.abstractmethod
    def select_outputs(self, outputs: Any, batch: Mapping[str, Any]) -> Outputs:
        """Return the outputs that `decode` needs, on the device."""

    @abc.abstractmethod
    def decode(self, answers: Sequence[Any], examples: E, samples: Samples) -> P:
        """Return the predictions for all examples.

        Args:
            answers: each sample's row of `select_outputs`, as numpy arrays; a tuple of rows if it
                returns a tuple.
        """

    def member_outputs(self, outputs: Any, batch: Mapping[str, Any]) -> Outputs:
        """Return the outputs that `combine` needs, on the device.

        Raises:
            UsageError: the outputs of this kind have no mean.
        """
        raise UsageError(
            f"checkpoint names several models, but outputs of task {self.name} cannot be averaged; "
            f"name one checkpoint"
        )

    def combine(self, members: Sequence[Member], examples: E) -> P:
        """Return the predictions of an ensemble: the mean of its members' predictions.

        Raises:
            UsageError: the members' samples cannot be compared.
        """
        decoded = [self.decode(member.answers, examples, member.samples) for member in members]
        return cast(P, mean_array(cast("list[npt.NDArray[Any]]", decoded)))

    @abc.abstractmethod
    def score(self, examples: E, predictions: P) -> Metrics:
        """Return the task's metrics by name, for labelled examples."""

    def tuned_options(self, examples: E, predictions: P) -> dict[str, Any]:
        """Return decoding options tuned on the dev split, such as a threshold."""
        return {}

    def baselines(self, examples: E) -> Metrics:
        """Return scores that ignore the inputs; `flows.report.report_nodes` has their names."""
        return {}

    def dataset_statistics(self, examples: E) -> dict[str, Any]:
        """Return further statistics of a split, as JSON."""
        return {}

    def detailed_metrics(
        self, examples: E, predictions: P, *, seed: int, resamples: int
    ) -> dict[str, Any]:
        """Return further results of labelled examples, as JSON, such as bootstrap intervals."""
        return {}

    @abc.abstractmethod
    def write_predictions(self, directory: str, examples: E, predictions: P) -> None:
        """Write the file `predictions`, and related files, in `directory`."""


def task_source(task: Task[Any, Any], data: str | None, corpus: str | None) -> str:
    """Return the path that the task reads.

    Raises:
        UsageError: the path is missing.
    """
    path = corpus if task.source == "corpus" else data
    if path is None:
        raise UsageError(
            f"task {task.name} needs {task.source} (found none); name {task.files} with "
            f"--{task.source}"
        )
    return path


# Splits of a task.


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Examples, and their samples."""

    examples: Examples
    samples: Samples

    def count(self, build: BuildContext, name: str) -> None:
        """Add the read, kept, dropped and truncated examples to the build's counters."""
        build.counters[f"read/{name}"] += len(self.examples) + sum(self.examples.dropped.values())
        build.counters[f"kept/{name}"] += len(self.examples)
        build.counters[f"truncated/{name}"] += self.samples.truncated
        self.count_dropped(build, name)

    def count_dropped(self, build: BuildContext, name: str) -> None:
        """Add the dropped examples and lost answers to the build's counters, by reason."""
        for reason, number in self.examples.dropped.items():
            build.counters[f"dropped/{reason}"] += number
        for reason, number in self.samples.dropped_counts.items():
            build.counters[f"lost/{name}/{reason}"] += number


def encoded(
    task: Task[Any, Any],
    examples: Examples,
    metadata: TaskMetadata,
    pieces: Tokenizer,
    max_length: int,
) -> Split:
    """Encode examples for a network with this metadata.

    Raises:
        DataError: the network cannot give an answer.
    """
    aligned = task.align_labels(examples, metadata)
    return Split(examples=aligned, samples=task.encode(aligned, pieces, max_length))


def check_labelled(examples: Examples, name: str) -> None:
    """Raise DataError if a split has no labels or no examples."""
    if not examples.labelled:
        raise DataError(f"{examples.where} has no labels; give the {name} split its labels")
    check_not_empty(examples, name)


def check_not_empty(examples: Examples, name: str) -> None:
    """Raise DataError if a split has no examples."""
    if not len(examples):
        told = ", ".join(f"{count:,} {reason}" for reason, count in examples.dropped.items())
        dropped = f" (dropped: {told})" if told else ""
        raise DataError(f"{examples.where} has no examples{dropped}; give the {name} split some")
