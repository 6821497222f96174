"""Multi-task training: one encoder with a head per task (Caruana 1997; MT-DNN, Liu et al. 2019).

A batch belongs to one task. Files, loss, decoding and metrics are those of the task's own kind,
kept apart by name: metric `mrpc_f1`, weight `heads.mrpc.classifier`, files `predictions/mrpc/`.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cloze.core import storage
from cloze.core.errors import DataError, UsageError, did_you_mean
from cloze.model.data.batch import Batch
from cloze.model.data.layouts import LayoutKind
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import Backbone
from cloze.model.tasks.options import MultiTaskOptions, TaskOptions
from cloze.model.tasks.table import load_task
from cloze.model.tasks.task import (
    Examples,
    Figures,
    Ints,
    Loss,
    Samples,
    Task,
    TaskMetadata,
    part_of,
)
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

TASKS, HEADS = "tasks", "heads"  # key of the task metadata; module name of the network
OF = "of "  # prefix of the batch entry that names the task


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiTaskExamples:
    """Splits of all tasks, in task order."""

    parts: Mapping[str, Examples]

    @property
    def where(self) -> str:
        return ", ".join(part.where for part in self.parts.values())

    @property
    def dropped(self) -> Mapping[str, int]:
        return {
            f"{name}_{why}": count
            for name, part in self.parts.items()
            for why, count in part.dropped.items()
        }

    @property
    def labelled(self) -> bool:
        return all(part.labelled for part in self.parts.values())

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiTaskSamples:
    """Samples of all tasks, numbered task by task."""

    parts: Mapping[str, Samples]

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts.values())

    @property
    def lengths(self) -> Ints:
        return np.concatenate([part.lengths for part in self.parts.values()])

    @property
    def truncated(self) -> int:
        return sum(part.truncated for part in self.parts.values())

    @property
    def dropped_counts(self) -> Mapping[str, int]:
        return {
            f"{name}_{why}": count
            for name, part in self.parts.items()
            for why, count in part.dropped_counts.items()
        }

    @property
    def groups(self) -> list[Ints]:
        """Numbers of each task's samples; no batch mixes tasks."""
        ends = np.cumsum([len(part) for part in self.parts.values()])
        return [
            np.arange(end - len(part), end)
            for end, part in zip(ends, self.parts.values(), strict=True)
        ]

    def batch(self, chosen: Sequence[int] | Ints, layout: LayoutKind) -> Batch:
        """Return a batch of one task, with the entry that names the task."""
        return self.part(np.asarray(chosen), 0, len(chosen), layout)

    def part(self, chosen: Ints, begin: int, end: int, layout: LayoutKind) -> Batch:
        """Return the batch of `part_of` for one task, with the entry that names the task."""
        first = 0
        for name, samples in self.parts.items():
            if chosen[0] < first + len(samples):
                own = part_of(samples, chosen - first, begin, end, layout)
                return {**own, f"{OF}{name}": torch.ones(())}
            first += len(samples)
        raise IndexError(f"there is no sample {chosen[0]}")


class MultiTaskNetwork(nn.Module):
    """Encoder, pooler if a task uses it, and `heads` by task.

    Args:
        parts: network of each task, sharing the encoder and pooler.
    """

    def __init__(self, parts: Mapping[str, nn.Module], backbone: Backbone) -> None:
        super().__init__()
        self.encoder = backbone.encoder
        if any(_children(part).get("pooler") is backbone.pooler for part in parts.values()):
            self.pooler = backbone.pooler
        own = {name: nn.ModuleDict(dict(_own(part))) for name, part in parts.items()}
        self.heads = nn.ModuleDict(own)
        self._parts = tuple(
            parts.items()
        )  # a tuple registers no submodules; their parameters are registered above

    def train(self, mode: bool = True) -> MultiTaskNetwork:
        for _, part in self._parts:
            part.train(mode)
        return super().train(mode)

    def forward(self, batch: Mapping[str, Any]) -> tuple[Any, Tensor]:
        """Return the outputs of the batch's task, and a 0 that depends on all head weights.

        Every weight then has a gradient at every step, so moments and weight decay do not depend on
        the number of ranks or the engine.
        """
        own = dict(self._parts)[_task_of(batch)]
        outputs, nothing = own(batch), torch.zeros((), device=batch["input_ids"].device)
        if not torch.is_grad_enabled():
            return outputs, nothing
        named = self.named_parameters()
        others = [
            part for name, part in named if part.requires_grad and not name.startswith("encoder.")
        ]
        if not all(parameter.numel() for parameter in others):
            raise UsageError(
                "several tasks at once need whole weights, ZeRO stage 3 cuts them; use --zero 2 or "
                "less"
            )
        return outputs, sum((0.0 * parameter.sum() for parameter in others), nothing)


class MultiTask(Task[MultiTaskExamples, dict[str, Any]]):
    """Tasks of any kind that reads data; the score is the mean of their scores."""

    metrics = ("mean",)
    predictions = "predictions"
    files = "a directory that holds the tasks' directories"

    def __init__(self, name: str, options: TaskOptions, metrics: tuple[str, ...] = ()) -> None:
        super().__init__(name, options, metrics)
        assert isinstance(options, MultiTaskOptions)
        self._said = options.tasks
        self.parts: dict[str, Task[Any, Any]] = {
            own: load_task(part.task or own, part.options) for own, part in options.tasks.items()
        }
        made = next((own for own, part in self.parts.items() if part.source != "data"), None)
        if made is not None:
            raise UsageError(
                f"tasks.{made} is read from a corpus, not from data, and cannot be one of several; "
                f"leave it out"
            )
        self.max_length = max(
            (part.max_length for part in self.parts.values()), default=self.max_length
        )

    def read(self, path: str, split: str, limit_per_class: int | None) -> MultiTaskExamples:
        """Read all tasks; `path` is for those without a data path."""
        found = {
            name: part.read(self._said[name].data or path, split, limit_per_class)
            for name, part in self.parts.items()
        }
        empty = next((name for name, part in found.items() if not len(part)), None)
        if empty is not None:
            raise DataError(f"{found[empty].where} has no examples; leave {empty} out of tasks")
        return MultiTaskExamples(parts=found)

    def metadata(self, train: MultiTaskExamples) -> TaskMetadata:
        """Return the metadata of each task, with its name and options."""
        return {
            TASKS: {
                name: {
                    **part.metadata(train.parts[name]),
                    "name": part.name,
                    "options": dict(self._said[name].options),
                }
                for name, part in self.parts.items()
            }
        }

    def heads(self, meaning: TaskMetadata) -> dict[str, Any]:
        return {name: part.heads(meaning[TASKS][name]) for name, part in self.parts.items()}

    def align_labels(self, examples: MultiTaskExamples, meaning: TaskMetadata) -> MultiTaskExamples:
        adopted = {
            name: part.align_labels(examples.parts[name], meaning[TASKS][name])
            for name, part in self.parts.items()
        }
        return dataclasses.replace(examples, parts=adopted)

    def balance_classes(self, train: MultiTaskExamples) -> MultiTaskExamples:
        balanced = {
            name: part.balance_classes(train.parts[name]) for name, part in self.parts.items()
        }
        return dataclasses.replace(train, parts=balanced)

    def encode(
        self, examples: MultiTaskExamples, tokenizer: Tokenizer, max_length: int
    ) -> MultiTaskSamples:
        """Encode each task with one maximum length; rows are as long as their texts."""
        parts = {
            name: part.encode(examples.parts[name], tokenizer, max_length)
            for name, part in self.parts.items()
        }
        return MultiTaskSamples(parts=parts)

    def network(
        self, backbone: Backbone, config: ModelConfig, meaning: TaskMetadata, dropout: float
    ) -> nn.Module:
        parts = {
            name: part.network(backbone, config, meaning[TASKS][name], dropout)
            for name, part in self.parts.items()
        }
        return MultiTaskNetwork(parts, backbone)

    def count(self, batch: Mapping[str, Any]) -> int:
        return self.parts[_task_of(batch)].count(batch)

    def loss(self, outputs: Any, batch: Mapping[str, Any]) -> Loss:
        own, nothing = outputs
        found = self.parts[_task_of(batch)].loss(own, batch)
        return Loss(total=found.total + nothing, correct=found.correct)

    def select_outputs(self, outputs: Any, batch: Mapping[str, Any]) -> Sequence[Any]:
        return self.parts[_task_of(batch)].select_outputs(outputs[0], batch)

    def decode(
        self, answers: Sequence[Any], examples: MultiTaskExamples, samples: Samples
    ) -> dict[str, Any]:
        assert isinstance(samples, MultiTaskSamples)
        found, groups = {}, samples.groups
        for (name, part), group in zip(self.parts.items(), groups, strict=True):
            own = answers[int(group[0]) : int(group[-1]) + 1]
            found[name] = part.decode(own, examples.parts[name], samples.parts[name])
        return found

    def score(self, examples: MultiTaskExamples, predictions: dict[str, Any]) -> Figures:
        """Return `mean` of the tasks' scores, and each task's metrics with its name as prefix."""
        found = {
            name: part.score(examples.parts[name], predictions[name])
            for name, part in self.parts.items()
        }
        mean = statistics.fmean(found[name][part.metrics[0]] for name, part in self.parts.items())
        return {"mean": mean} | _named(found)

    def baselines(self, examples: MultiTaskExamples) -> Figures:
        return _named(
            {name: part.baselines(examples.parts[name]) for name, part in self.parts.items()}
        )

    def dataset_statistics(self, examples: MultiTaskExamples) -> dict[str, Any]:
        return {
            "by_task": {
                name: {
                    "examples": len(examples.parts[name]),
                    **part.dataset_statistics(examples.parts[name]),
                }
                for name, part in self.parts.items()
            }
        }

    def write_predictions(
        self, directory: str, examples: MultiTaskExamples, predictions: dict[str, Any]
    ) -> None:
        """Write each task's files in a directory named after it."""
        for name, part in self.parts.items():
            place = storage.join(directory, self.predictions, name)
            storage.make_dirs(place)
            part.write_predictions(place, examples.parts[name], predictions[name])


def select_task(
    meaning: TaskMetadata, state: Mapping[str, Tensor], wanted: str | None, where: str
) -> tuple[TaskMetadata, dict[str, Tensor]]:
    """Return one task of a checkpoint, as if trained alone.

    Args:
        wanted: task name; None: the only task.
        where: checkpoint, for messages.

    Raises:
        UsageError: the checkpoint has no such task, or several and none is named.
    """
    several = meaning.get(TASKS)
    if several is None:
        if wanted not in (None, meaning["name"]):
            raise UsageError(
                f"{where} is a model for the task {meaning['name']}, not {wanted}; leave task out"
            )
        return meaning, dict(state)
    if wanted not in several:
        if wanted in (None, meaning["name"]):
            raise UsageError(
                f"{where} is a model for several tasks; name one of them with task: "
                f"{', '.join(sorted(several))}"
            )
        raise UsageError(f"{where} has no task {wanted!r}; {did_you_mean(str(wanted), several)}")
    part = {**meaning, **several[wanted]}
    del part[TASKS]
    part["metric"] = load_task(str(part["name"]), part["options"]).metrics[0]
    own = f"{HEADS}.{wanted}."
    kept = {
        name.removeprefix(own): tensor
        for name, tensor in state.items()
        if name.startswith(own) or not name.startswith(f"{HEADS}.")
    }
    return part, kept


def _task_of(batch: Mapping[str, Any]) -> str:
    return next(key.removeprefix(OF) for key in batch if key.startswith(OF))


def _named(found: Mapping[str, Figures]) -> Figures:
    return {
        f"{task}_{name}": value
        for task, figures in found.items()
        for name, value in figures.items()
    }


def _children(module: nn.Module) -> dict[str, nn.Module]:
    return dict(module.named_children())


def _own(part: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Iterate over a network's modules other than the backbone."""
    return (
        (name, child) for name, child in part.named_children() if name not in ("encoder", "pooler")
    )
