"""Several tasks at once: one encoder, and a head for each task (Caruana 1997, "Multitask Learning"; Liu et al. 2019, "Multi-Task Deep
Neural Networks for Natural Language Understanding").

A batch is one task's. What a task alone knows (files, loss, decoding, metrics) its own kind says; here they are kept apart, by name:
`mrpc_f1` is a metric, `heads.mrpc.classifier` a weight, `predictions/mrpc/` the files of one.
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

from model.data.batch import Batch
from model.data.layouts import Kind
from model.families.config import ModelConfig
from model.families.models import Backbone
from model.tasks.options import TaskOptions
from model.tasks.table import load_task
from model.tasks.task import Examples, Figures, Ints, Loss, Meaning, Samples, Task
from model.tasks.together_options import TogetherOptions
from pipeline.core import storage
from pipeline.core.errors import DataError, UsageError, did_you_mean
from pipeline.tokenizer.tokenizer import Tokenizer

TASKS, HEADS = "tasks", "heads"  # in a meaning; of the network, and so in the names of its weights
OF = "of "  # before the task's name: the entry of a batch that says whose it is


@dataclass(frozen=True, slots=True, kw_only=True)
class TogetherExamples:
    """One split of each task, in the order of the tasks."""

    parts: Mapping[str, Examples]

    @property
    def where(self) -> str:
        return ", ".join(part.where for part in self.parts.values())

    @property
    def dropped(self) -> Mapping[str, int]:
        return {f"{name}_{why}": count for name, part in self.parts.items() for why, count in part.dropped.items()}

    @property
    def labelled(self) -> bool:
        return all(part.labelled for part in self.parts.values())

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class TogetherSamples:
    """The samples of each task, numbered one task after the other."""

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
    def lost(self) -> Mapping[str, int]:
        return {f"{name}_{why}": count for name, part in self.parts.items() for why, count in part.lost.items()}

    @property
    def groups(self) -> list[Ints]:
        """The numbers of each task's samples: no batch holds two tasks'."""
        ends = np.cumsum([len(part) for part in self.parts.values()])
        return [np.arange(end - len(part), end) for end, part in zip(ends, self.parts.values(), strict=True)]

    def batch(self, chosen: Sequence[int] | Ints, layout: Kind) -> Batch:
        """A task's own batch, with the entry that names the task."""
        first = 0
        for name, part in self.parts.items():
            if chosen[0] < first + len(part):
                return {**part.batch(np.asarray(chosen) - first, layout), f"{OF}{name}": torch.ones(())}
            first += len(part)
        raise IndexError(f"there is no sample {chosen[0]}")


class TogetherNetwork(nn.Module):
    """The encoder, the pooler where a task uses it, and `heads`: what stands on them, by task.

    Args:
        parts: each task's own network, on one and the same encoder and pooler.
    """

    def __init__(self, parts: Mapping[str, nn.Module], backbone: Backbone) -> None:
        super().__init__()
        self.encoder = backbone.encoder
        if any(_children(part).get("pooler") is backbone.pooler for part in parts.values()):
            self.pooler = backbone.pooler
        own = {name: nn.ModuleDict(dict(_own(part))) for name, part in parts.items()}
        self.heads = nn.ModuleDict(own)
        self._parts = tuple(parts.items())  # a tuple is no submodule: what they hold is here already, under one name

    def train(self, mode: bool = True) -> TogetherNetwork:
        for _, part in self._parts:
            part.train(mode)
        return super().train(mode)

    def forward(self, batch: Mapping[str, Any]) -> tuple[Any, Tensor]:
        """The outputs of the network of the batch's task, and 0, which hangs on all weights that this task does not use.

        So each weight has a gradient at every step, on any number of ranks and with any engine: moments and decay do not depend on how
        training is spread.
        """
        own = dict(self._parts)[_task_of(batch)]
        outputs, nothing = own(batch), torch.zeros((), device=batch["input_ids"].device)
        if not torch.is_grad_enabled():
            return outputs, nothing
        used = {id(parameter) for parameter in own.parameters()}
        idle = [parameter for parameter in self.parameters() if id(parameter) not in used and parameter.requires_grad]
        if not all(parameter.numel() for parameter in idle):
            raise UsageError("several tasks at once need whole weights, ZeRO stage 3 cuts them; use --zero 2 or less")
        return outputs, sum((0.0 * parameter.sum() for parameter in idle), nothing)


class Together(Task[TogetherExamples, dict[str, Any]]):
    """Tasks of any kind that are read from data; the score is the mean of theirs."""

    metrics = ("mean",)
    predictions = "predictions"
    files = "a directory that holds the tasks' directories"

    def __init__(self, name: str, options: TaskOptions, metrics: tuple[str, ...] = ()) -> None:
        super().__init__(name, options, metrics)
        assert isinstance(options, TogetherOptions)
        self._said = options.tasks
        self.parts: dict[str, Task[Any, Any]] = {
            own: load_task(part.task or own, part.options) for own, part in options.tasks.items()
        }
        made = next((own for own, part in self.parts.items() if part.source != "data"), None)
        if made is not None:
            raise UsageError(f"tasks.{made} is read from a corpus, not from data, and cannot be one of several; leave it out")
        self.max_length = max((part.max_length for part in self.parts.values()), default=self.max_length)

    def read(self, path: str, split: str, limit_per_class: int | None) -> TogetherExamples:
        """Args: path: the data of the parts that name none."""
        found = {name: part.read(self._said[name].data or path, split, limit_per_class) for name, part in self.parts.items()}
        empty = next((name for name, part in found.items() if not len(part)), None)
        if empty is not None:
            raise DataError(f"{found[empty].where} has no examples; leave {empty} out of tasks")
        return TogetherExamples(parts=found)

    def meaning(self, train: TogetherExamples) -> Meaning:
        """By task what its own kind says, with its name and options."""
        return {
            TASKS: {
                name: {**part.meaning(train.parts[name]), "name": part.name, "options": dict(self._said[name].options)}
                for name, part in self.parts.items()
            }
        }

    def heads(self, meaning: Meaning) -> dict[str, Any]:
        return {name: part.heads(meaning[TASKS][name]) for name, part in self.parts.items()}

    def adopt(self, examples: TogetherExamples, meaning: Meaning) -> TogetherExamples:
        adopted = {name: part.adopt(examples.parts[name], meaning[TASKS][name]) for name, part in self.parts.items()}
        return dataclasses.replace(examples, parts=adopted)

    def balance(self, train: TogetherExamples) -> TogetherExamples:
        balanced = {name: part.balance(train.parts[name]) for name, part in self.parts.items()}
        return dataclasses.replace(train, parts=balanced)

    def encode(self, examples: TogetherExamples, tokenizer: Tokenizer, max_length: int) -> TogetherSamples:
        """Every task's at most as long as the longest may be: how long rows are follows from the texts."""
        parts = {name: part.encode(examples.parts[name], tokenizer, max_length) for name, part in self.parts.items()}
        return TogetherSamples(parts=parts)

    def network(self, backbone: Backbone, config: ModelConfig, meaning: Meaning, dropout: float) -> nn.Module:
        parts = {name: part.network(backbone, config, meaning[TASKS][name], dropout) for name, part in self.parts.items()}
        return TogetherNetwork(parts, backbone)

    def count(self, batch: Mapping[str, Any]) -> int:
        return self.parts[_task_of(batch)].count(batch)

    def loss(self, outputs: Any, batch: Mapping[str, Any]) -> Loss:
        own, nothing = outputs
        found = self.parts[_task_of(batch)].loss(own, batch)
        return Loss(total=found.total + nothing, correct=found.correct)

    def answers(self, outputs: Any, batch: Mapping[str, Any]) -> Sequence[Any]:
        return self.parts[_task_of(batch)].answers(outputs[0], batch)

    def decode(self, answers: Sequence[Any], examples: TogetherExamples, samples: Samples) -> dict[str, Any]:
        assert isinstance(samples, TogetherSamples)
        found, groups = {}, samples.groups
        for (name, part), group in zip(self.parts.items(), groups, strict=True):
            own = answers[int(group[0]) : int(group[-1]) + 1]
            found[name] = part.decode(own, examples.parts[name], samples.parts[name])
        return found

    def score(self, examples: TogetherExamples, predictions: dict[str, Any]) -> Figures:
        """`mean`, of the tasks' scores; and each task's metrics under its name."""
        found = {name: part.score(examples.parts[name], predictions[name]) for name, part in self.parts.items()}
        mean = statistics.fmean(found[name][part.metrics[0]] for name, part in self.parts.items())
        return {"mean": mean} | _named(found)

    def baselines(self, examples: TogetherExamples) -> Figures:
        return _named({name: part.baselines(examples.parts[name]) for name, part in self.parts.items()})

    def facts(self, examples: TogetherExamples) -> dict[str, Any]:
        return {
            "by_task": {
                name: {"examples": len(examples.parts[name]), **part.facts(examples.parts[name])}
                for name, part in self.parts.items()
            }
        }

    def write(self, directory: str, examples: TogetherExamples, predictions: dict[str, Any]) -> None:
        """Each task's files in a directory of its name."""
        for name, part in self.parts.items():
            place = storage.join(directory, self.predictions, name)
            storage.make_dirs(place)
            part.write(place, examples.parts[name], predictions[name])


def one_of(meaning: Meaning, state: Mapping[str, Tensor], wanted: str | None, where: str) -> tuple[Meaning, dict[str, Tensor]]:
    """One task of a checkpoint, as if it had been trained alone; of a checkpoint of one task, that.

    Args:
        wanted: its name; None: the only one.
        where: the checkpoint, for messages.

    Raises:
        UsageError: the checkpoint has no such task, or has several and none is named.
    """
    several = meaning.get(TASKS)
    if several is None:
        if wanted not in (None, meaning["name"]):
            raise UsageError(f"{where} is a model for the task {meaning['name']}, not {wanted}; leave task out")
        return meaning, dict(state)
    if wanted not in several:
        if wanted in (None, meaning["name"]):
            raise UsageError(f"{where} is a model for several tasks; name one of them with task: {', '.join(sorted(several))}")
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
    wants_pooler = "classifier" in _heads_of(part) or "choice" in _heads_of(part)
    return part, {name: tensor for name, tensor in kept.items() if wants_pooler or not name.startswith("pooler.")}


def _heads_of(meaning: Meaning) -> dict[str, Any]:
    return load_task(str(meaning["name"]), meaning["options"]).heads(meaning)


def _task_of(batch: Mapping[str, Any]) -> str:
    return next(key.removeprefix(OF) for key in batch if key.startswith(OF))


def _named(found: Mapping[str, Figures]) -> Figures:
    return {f"{task}_{name}": value for task, figures in found.items() for name, value in figures.items()}


def _children(module: nn.Module) -> dict[str, nn.Module]:
    return dict(module.named_children())


def _own(part: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """What a task's network has beside the backbone."""
    return ((name, child) for name, child in part.named_children() if name not in ("encoder", "pooler"))
