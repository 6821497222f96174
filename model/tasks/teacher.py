"""Distillation on a task: the student learns a fine-tuned teacher's answers and states.

The student's loss is a weighted sum of the task's own loss (`DistillOptions.labels`) and the losses
against the teacher, which reads the same batches in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cloze.core.errors import UsageError
from cloze.core.stages.stage import BuildContext
from cloze.model import checkpoint
from cloze.model.families.config import ModelConfig
from cloze.model.layers.batch import Batch
from cloze.model.objectives import Objective, objectives
from cloze.model.objectives.distill_options import DistillOptions
from cloze.model.objectives.distillation import RECORDED, Comparison, add_projection
from cloze.model.objectives.losses import soft_divergence
from cloze.model.tasks.task import Loss
from cloze.pipeline import tokenizer

if TYPE_CHECKING:
    from cloze.model.tasks.task import Task, TaskMetadata
    from cloze.pipeline.tokenizer.tokenizer import Tokenizer

SOFT = "soft"  # name of the loss against the teacher's answers
LOWEST_LOGIT = -1e30  # finite in fp32 at any temperature above 1e-8


def soft_loss(
    student: Tensor, teacher: Tensor, temperature: float, real: Tensor | None = None
) -> Loss:
    """Return the KL divergence of student from teacher, summed, times the temperature's square.

    Args:
        student, teacher: logits, float [..., C]; minus infinity for answers that do not exist.
        temperature: divides both logits.
        real: float or bool [...], weight of each item; None: 1.
    """
    student, teacher = (logits.float().clamp(min=LOWEST_LOGIT) for logits in (student, teacher))
    losses = soft_divergence(student, teacher, temperature) * temperature**2
    agreement = student.detach().argmax(dim=-1) == teacher.argmax(dim=-1)
    if real is not None:
        losses, agreement = torch.where(real > 0, losses * real, 0.0), agreement & (real > 0)
    return Loss(total=losses.sum(), correct=agreement.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTeacher:
    """A teacher's network and what its student learns from it.

    Attributes:
        options: weights of the losses.
        network: the teacher's network, frozen, in evaluation mode.
    """

    options: DistillOptions
    model: ModelConfig
    network: nn.Module = field(repr=False)

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """Objectives that compare states."""
        return objectives(name for name in self.options.loss_weights() if name in RECORDED)

    def losses_of(self, student: nn.Module, model: ModelConfig) -> TeacherLosses:
        """Return the losses of a student's network, and add the projection that they need to it.

        Raises:
            UsageError: the models lack the states that `options` compare.
        """
        names = [objective.name for objective in self.objectives]
        if names and not hasattr(student, "encoder"):
            raise UsageError(
                "distill.hidden and distill.relations are for tasks with one encoder; leave them "
                "out"
            )
        add_projection(student, model, self.model, names)
        for network in (student, self.network):
            parts: Mapping[str, Any] = getattr(network, "parts", {"": network})
            for part in parts.values():
                if hasattr(part, "all_positions"):
                    part.all_positions = bool(names)
        models, heads = (model, self.model), self.options.relation_heads
        return TeacherLosses(
            options=self.options,
            objectives=self.objectives,
            comparison=Comparison(student, self.network, models, names, heads),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherLosses:
    """The losses of one student against its teacher.

    Attributes:
        objectives: objectives that compare states.
        comparison: runs student and teacher.
    """

    options: DistillOptions
    objectives: tuple[Objective, ...]
    comparison: Comparison

    @property
    def weights(self) -> dict[str, float]:
        """Names and weights of the losses."""
        weights = {SOFT: self.options.soft} if self.options.soft else {}
        all_weights = self.options.loss_weights()
        return weights | {own.name: all_weights[own.name] for own in self.objectives}

    def counts(self, task: Task[Any, Any], batch: Batch) -> list[int]:
        """Return the number of items of each loss of a batch."""
        soft = [task.count(batch)] if self.options.soft else []
        return [*soft, *(objective.count(batch) for objective in self.objectives)]

    def score(self, task: Task[Any, Any], batch: Batch) -> tuple[Any, list[tuple[Tensor, Tensor]]]:
        """Return the student's outputs for a batch, and the losses in the order of `weights`."""
        outputs, answers, states = self.comparison(batch)
        losses = list[tuple[Tensor, Tensor]]()
        if self.options.soft:
            losses.append(task.soft_loss(outputs, answers, batch, self.options.temperature))
        return outputs, losses + [own.loss(states, batch) for own in self.objectives]


def load_task_teacher(
    path: str,
    options: DistillOptions,
    task: Task[Any, Any],
    metadata: TaskMetadata,
    pieces: Tokenizer,
    build: BuildContext,
) -> TaskTeacher:
    """Read the teacher at `path`.

    Args:
        pieces: the student's tokenizer.

    Raises:
        UsageError: the teacher was fine-tuned on another task or with other labels, or cannot read
            the student's tokens.
        DataError: there is no usable model at `path`.
    """
    from cloze.model.tasks.heads import trained_network

    loaded = checkpoint.load_input(build, path)
    if loaded.task is None:
        raise UsageError(
            f"teacher ({path}) was pretrained, not fine-tuned; run `cloze finetune` on it first"
        )
    for key in ("name", "labels"):
        value, expected = (_by_task(own, key) for own in (loaded.task, metadata))
        if value != expected:
            raise UsageError(
                f"teacher ({path}) was fine-tuned with the {key} {value}, the student's is "
                f"{expected}; name a teacher of the same task"
            )
    if _tokens(tokenizer.load(loaded.tokenizer)) != _tokens(pieces):
        raise UsageError(
            f"teacher ({path}) has another vocabulary than the student, so that it cannot read its "
            f"batches; name a teacher with the student's tokenizer"
        )
    longest, limit = int(metadata["max_length"]), loaded.model.max_position_embeddings
    if longest > limit:
        raise UsageError(
            f"teacher ({path}) reads {limit} tokens, the student up to {longest}; set max_length "
            f"to {limit} or less"
        )
    network = trained_network(task, loaded.model, loaded.state, loaded.task, path)
    return TaskTeacher(options=options, model=loaded.model, network=network.requires_grad_(False))


def _by_task(metadata: TaskMetadata, key: str) -> Any:
    """Return a value of the metadata; of several tasks, each task's."""
    tasks = metadata.get("tasks")
    return {name: own.get(key) for name, own in tasks.items()} if tasks else metadata.get(key)


def _tokens(pieces: Tokenizer) -> Mapping[str, int]:
    return dict(pieces.backend.get_vocab(with_added_tokens=True))
