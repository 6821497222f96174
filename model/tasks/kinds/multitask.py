"""Multi-task training: one encoder with a head per task (Caruana 1997; MT-DNN, Liu et al. 2019).

A batch belongs to one task. Files, loss, decoding and metrics are those of the task's kind. Names
include the task: metric `mrpc_f1`, weight `heads.mrpc.classifier`, files `predictions/mrpc/`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from cloze.core import storage
from cloze.core.errors import DataError, UsageError, did_you_mean
from cloze.core.ragged import I64
from cloze.model.data.layouts import LayoutKind
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import Backbone
from cloze.model.layers.batch import Batch, extend
from cloze.model.tasks.options import MultiTaskOptions, TaskOptions
from cloze.model.tasks.table import load_task
from cloze.model.tasks.task import Examples, Loss, Metrics, Samples, Task, TaskMetadata, part_of
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

V = TypeVar("V")
TASKS, HEADS = "tasks", "heads"  # key of the task metadata; module name of the network
OF = "of "  # prefix of the batch entry that names the task


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiTaskExamples:
    """Splits of all tasks, in task order."""

    parts: Mapping[str, Examples]

    @property
    def where(self) -> str:
        return ", ".join(examples.where for examples in self.parts.values())

    @property
    def dropped(self) -> Mapping[str, int]:
        return _prefixed({name: examples.dropped for name, examples in self.parts.items()})

    @property
    def labelled(self) -> bool:
        return all(examples.labelled for examples in self.parts.values())

    def __len__(self) -> int:
        return sum(len(examples) for examples in self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiTaskSamples:
    """Samples of all tasks, numbered task by task."""

    parts: Mapping[str, Samples]

    def __len__(self) -> int:
        return sum(len(samples) for samples in self.parts.values())

    @property
    def lengths(self) -> I64:
        return np.concatenate([samples.lengths for samples in self.parts.values()])

    @property
    def truncated(self) -> int:
        return sum(samples.truncated for samples in self.parts.values())

    @property
    def dropped_counts(self) -> Mapping[str, int]:
        return _prefixed({name: samples.dropped_counts for name, samples in self.parts.items()})

    @property
    def groups(self) -> list[I64]:
        """Numbers of each task's samples; no batch mixes tasks."""
        ends = np.cumsum([len(samples) for samples in self.parts.values()])
        return np.split(np.arange(ends[-1]), ends[:-1])

    def batch(self, indices: Sequence[int] | I64, layout: LayoutKind) -> Batch:
        """Return a batch of one task, with the entry that names the task."""
        return self.part(np.asarray(indices), 0, len(indices), layout)

    def part(self, indices: I64, begin: int, end: int, layout: LayoutKind) -> Batch:
        """Return the batch of `part_of` for one task, with the entry that names the task."""
        offset = 0
        for name, samples in self.parts.items():
            if indices[0] < offset + len(samples):
                batch = part_of(samples, indices - offset, begin, end, layout)
                return extend(batch, {f"{OF}{name}": torch.ones(())})
            offset += len(samples)
        raise IndexError(f"there is no sample {indices[0]}")


class MultiTaskNetwork(nn.Module):
    """Encoder, pooler if a task uses it, and `heads` by task.

    Args:
        parts: network of each task, sharing the encoder and pooler.
    """

    def __init__(self, parts: Mapping[str, nn.Module], backbone: Backbone) -> None:
        super().__init__()
        self.encoder = backbone.encoder
        children = {name: dict(network.named_children()) for name, network in parts.items()}
        if any(own.get("pooler") is backbone.pooler for own in children.values()):
            self.pooler = backbone.pooler
        self.heads = nn.ModuleDict()
        for name, own in children.items():
            head = {part: own[part] for part in own if part not in ("encoder", "pooler")}
            self.heads[name] = nn.ModuleDict(head)
        # A plain mapping registers no submodules; their parameters are registered above.
        self.parts = parts

    def train(self, mode: bool = True) -> MultiTaskNetwork:
        for network in self.parts.values():
            network.train(mode)
        return super().train(mode)

    def forward(self, batch: Mapping[str, Any]) -> tuple[Any, Tensor]:
        """Return the outputs of the batch's task, and a 0 that depends on all head weights.

        Every weight then has a gradient at every step, so moments and weight decay do not depend on
        the number of ranks or the engine.
        """
        network = self.parts[_task_of(batch)]
        outputs, zero = network(batch), torch.zeros((), device=batch["input_ids"].device)
        if not torch.is_grad_enabled():
            return outputs, zero
        trainable = [
            weight
            for name, weight in self.named_parameters()
            if weight.requires_grad and not name.startswith("encoder.")
        ]
        if not all(parameter.numel() for parameter in trainable):
            raise UsageError(
                "several tasks at once need whole weights, ZeRO stage 3 cuts them; use --zero 2 or "
                "less"
            )
        return outputs, sum((0.0 * parameter.sum() for parameter in trainable), zero)


class MultiTask(Task[MultiTaskExamples, dict[str, Any]]):
    """Tasks of any kind that reads data; the score is the mean of their scores."""

    options: MultiTaskOptions
    metrics = ("mean",)
    predictions = "predictions"
    files = "a directory that contains the tasks' directories"

    def __init__(self, name: str, options: TaskOptions, metrics: tuple[str, ...] = ()) -> None:
        super().__init__(name, options, metrics)
        self.parts: dict[str, Task[Any, Any]] = {
            task_name: load_task(task.task or task_name, task.options)
            for task_name, task in self.options.tasks.items()
        }
        for task_name, part in self.parts.items():
            if part.source != "data":
                raise UsageError(
                    f"tasks.{task_name} is read from a corpus, not from data, and cannot be one of "
                    f"several; leave it out"
                )
        lengths = [part.max_length for part in self.parts.values()]
        self.max_length = max(lengths, default=self.max_length)

    def sources(self, path: str) -> list[tuple[str, TaskOptions]]:
        return [
            source
            for name, part in self.parts.items()
            for source in part.sources(self.options.tasks[name].data or path)
        ]

    def read(self, path: str, split: str, limit_per_class: int | None) -> MultiTaskExamples:
        """Read all tasks; `path` is for those without a data path."""
        own = self.options.tasks
        parts = self._each(
            lambda name, part: part.read(own[name].data or path, split, limit_per_class)
        )
        for name, examples in parts.items():
            if not len(examples):
                raise DataError(f"{examples.where} has no examples; leave {name} out of tasks")
        return MultiTaskExamples(parts=parts)

    def _each(self, of_task: Callable[[str, Task[Any, Any]], V]) -> dict[str, V]:
        """Return what a function of its name and itself gives for each task."""
        return {name: of_task(name, task) for name, task in self.parts.items()}

    def metadata(self, train: MultiTaskExamples) -> TaskMetadata:
        """Return the metadata of each task, with its name and options."""

        def metadata(name: str, task: Task[Any, Any]) -> TaskMetadata:
            options = dict(self.options.tasks[name].options)
            return {**task.metadata(train.parts[name]), "name": task.name, "options": options}

        return {TASKS: self._each(metadata)}

    def heads(self, metadata: TaskMetadata) -> dict[str, Any]:
        return self._each(lambda name, task: task.heads(metadata[TASKS][name]))

    def align_labels(
        self, examples: MultiTaskExamples, metadata: TaskMetadata
    ) -> MultiTaskExamples:
        parts, own = examples.parts, metadata[TASKS]
        aligned = self._each(lambda name, task: task.align_labels(parts[name], own[name]))
        return MultiTaskExamples(parts=aligned)

    def balance_classes(self, train: MultiTaskExamples) -> MultiTaskExamples:
        parts = self._each(lambda name, task: task.balance_classes(train.parts[name]))
        return MultiTaskExamples(parts=parts)

    def encode(
        self, examples: MultiTaskExamples, tokenizer: Tokenizer, max_length: int
    ) -> MultiTaskSamples:
        """Encode each task with one maximum length; rows are as long as their texts."""
        parts = examples.parts
        return MultiTaskSamples(
            parts=self._each(lambda name, task: task.encode(parts[name], tokenizer, max_length))
        )

    def network(
        self, backbone: Backbone, config: ModelConfig, metadata: TaskMetadata, dropout: float
    ) -> nn.Module:
        own = metadata[TASKS]
        networks = self._each(lambda name, task: task.network(backbone, config, own[name], dropout))
        return MultiTaskNetwork(networks, backbone)

    def count(self, batch: Mapping[str, Any]) -> int:
        return self.parts[_task_of(batch)].count(batch)

    def loss(self, outputs: Any, batch: Mapping[str, Any]) -> Loss:
        task_outputs, zero = outputs
        name = _task_of(batch)
        loss = self.parts[name].loss(task_outputs, batch)
        weight = self.options.tasks[name].weight
        return Loss(total=weight * loss.total + zero, correct=loss.correct)

    def select_outputs(self, outputs: Any, batch: Mapping[str, Any]) -> Tensor | tuple[Tensor, ...]:
        return self.parts[_task_of(batch)].select_outputs(outputs[0], batch)

    def decode(
        self, answers: Sequence[Any], examples: MultiTaskExamples, samples: Samples
    ) -> dict[str, Any]:
        assert isinstance(samples, MultiTaskSamples)
        predictions, groups = {}, samples.groups
        for (name, task), group in zip(self.parts.items(), groups, strict=True):
            task_answers = answers[int(group[0]) : int(group[-1]) + 1]
            predictions[name] = task.decode(task_answers, examples.parts[name], samples.parts[name])
        return predictions

    def score(self, examples: MultiTaskExamples, predictions: dict[str, Any]) -> Metrics:
        """Return `mean` of the tasks' scores, and each task's metrics with its name as prefix."""
        scores = self._each(lambda name, task: task.score(examples.parts[name], predictions[name]))
        mean = statistics.fmean(scores[name][task.metrics[0]] for name, task in self.parts.items())
        return {"mean": mean, **_prefixed(scores)}

    def tuned_options(
        self, examples: MultiTaskExamples, predictions: dict[str, Any]
    ) -> dict[str, Any]:
        """Return `tasks`, with the tuned options of each."""
        tasks = {}
        for name, own in self.options.tasks.items():
            tuned = self.parts[name].tuned_options(examples.parts[name], predictions[name])
            tasks[name] = {**own.model_dump(mode="json"), "options": {**own.options, **tuned}}
        return {TASKS: tasks}

    def baselines(self, examples: MultiTaskExamples) -> Metrics:
        return _prefixed(self._each(lambda name, task: task.baselines(examples.parts[name])))

    def dataset_statistics(self, examples: MultiTaskExamples) -> dict[str, Any]:
        def statistics_of(name: str, task: Task[Any, Any]) -> dict[str, Any]:
            own = examples.parts[name]
            return {"examples": len(own), **task.dataset_statistics(own)}

        return {"by_task": self._each(statistics_of)}

    def write_predictions(
        self, directory: str, examples: MultiTaskExamples, predictions: dict[str, Any]
    ) -> None:
        """Write each task's files in a directory named after it."""
        for name, task in self.parts.items():
            task_directory = storage.join(directory, self.predictions, name)
            storage.make_dirs(task_directory)
            task.write_predictions(task_directory, examples.parts[name], predictions[name])


def select_task(
    metadata: TaskMetadata, state: Mapping[str, Tensor], task: str | None, where: str
) -> tuple[TaskMetadata, dict[str, Tensor]]:
    """Return one task of a checkpoint, as if trained alone.

    Args:
        task: task name; None: the only task.
        where: checkpoint, for messages.

    Raises:
        UsageError: the checkpoint has no such task, or several and none is named.
    """
    tasks = metadata.get(TASKS)
    if tasks is None:
        if task not in (None, metadata["name"]):
            raise UsageError(
                f"{where} is a model for the task {metadata['name']}, not {task}; leave task out"
            )
        return metadata, dict(state)
    if task not in tasks:
        if task in (None, metadata["name"]):
            raise UsageError(
                f"{where} is a model for several tasks; name one of them with task: "
                f"{', '.join(sorted(tasks))}"
            )
        raise UsageError(f"{where} has no task {task!r}; {did_you_mean(str(task), tasks)}")
    metadata = {**metadata, **tasks[task]}
    del metadata[TASKS]
    prefix = f"{HEADS}.{task}."
    weights = {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix) or not name.startswith(f"{HEADS}.")
    }
    return metadata, weights


def trained_options(metadata: TaskMetadata) -> dict[str, Any]:
    """Return the options of a checkpoint's training; of several tasks with each task's own."""
    tasks = {
        name: {"task": own["name"], "options": own["options"]}
        for name, own in metadata.get(TASKS, {}).items()
    }
    return {**(metadata.get("options") or {}), **({TASKS: tasks} if tasks else {})}


def _task_of(batch: Mapping[str, Any]) -> str:
    return next(key.removeprefix(OF) for key in batch if key.startswith(OF))


N = TypeVar("N", int, float)


def _prefixed(by_task: Mapping[str, Mapping[str, N]]) -> dict[str, N]:
    """Return all numbers in one table, with the task's name before the number's."""
    return {
        f"{task}_{name}": value
        for task, numbers in by_task.items()
        for name, value in numbers.items()
    }
