"""Batch sources of fine-tuning, and the trained module: a task's network with its loss."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from cloze.core import random_keys
from cloze.core.ragged import I64
from cloze.model.data.layouts import LayoutKind, layout_for
from cloze.model.data.sampler import micro_batch_ranges
from cloze.model.layers.batch import Batch, extend
from cloze.model.tasks.encode import groups_of, shuffled, training_batches
from cloze.model.tasks.task import Samples, Task, part_of
from cloze.model.train.evaluate.scoring import WeightedLosses
from cloze.model.train.precision import DTYPES, Precision
from cloze.model.train.spec.interfaces import MicroBatch, StepBatches

if TYPE_CHECKING:
    from cloze.model.tasks.auxiliary import Auxiliary
    from cloze.model.tasks.teacher import TeacherLosses

BLANK = "blank"  # batch entry: the batch has weight 0
_MIXED = 2  # random stream, distinct from those of `training_batches`


class EpochSource:
    """`cloze.model.train.spec.interfaces.BatchSource` of one task: every sample once per epoch.

    The order is a function of seed and epoch. One batch of an epoch, at any position, is smaller if
    the number of samples is not divisible.

    Args:
        batch_size: samples per step, over all ranks.
        micro_batch: maximum samples per forward pass.
        layout: layout of the batches, see `cloze.model.data.layouts`.
        indices: sample numbers; None: all.
    """

    def __init__(
        self,
        samples: Samples,
        *,
        batch_size: int,
        seed: int,
        micro_batch: int,
        layout: LayoutKind = "rows",
        indices: I64 | None = None,
    ) -> None:
        self._samples, self._lengths = samples, samples.lengths
        self._numbers = np.arange(len(samples)) if indices is None else indices
        self._batch_size, self._seed, self._micro_batch = batch_size, seed, micro_batch
        self._layout: LayoutKind = layout
        self._order = functools.lru_cache(maxsize=2)(self._make_order)  # by epoch
        self.steps_per_epoch = -(-len(self._numbers) // batch_size)

    def step_batches(self, step: int, rank: int, world_size: int) -> StepBatches:
        indices, first_sample = self._step_samples(step)
        count = -(-len(indices) // (world_size * self._micro_batch))
        ranges = micro_batch_ranges(0, len(indices), rank, world_size, count)
        return StepBatches(
            micro_batches=[
                MicroBatch(first_sample + begin, self._batch(indices, begin, end))
                for begin, end in ranges
            ],
            tokens=int(self._lengths[indices[ranges[0][0] : ranges[-1][1]]].sum()),
        )

    def samples(self, steps: int) -> int:
        epoch, step_in_epoch = divmod(steps, self.steps_per_epoch)
        return epoch * len(self._numbers) + (
            self._order(epoch)[1][step_in_epoch] if step_in_epoch else 0
        )

    def row_ids(self, step: int) -> dict[str, list[int]]:
        return {"rows": self._step_samples(step)[0].tolist()}

    def blank(self) -> Batch:
        """Return a batch with zero loss and gradient."""
        batch = self._samples.batch(self._numbers[:1], self._layout)
        return extend(batch, {BLANK: torch.ones(())})

    def _batch(self, indices: I64, begin: int, end: int) -> Batch:
        if begin == end:
            return self.blank()
        return part_of(self._samples, indices, begin, end, self._layout)

    def _step_samples(self, step: int) -> tuple[I64, int]:
        """Return the samples of a step, and the number of the first one in the run."""
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        batches, begins = self._order(epoch)
        return batches[step_in_epoch], epoch * len(self._numbers) + begins[step_in_epoch]

    def _make_order(self, epoch: int) -> tuple[list[I64], list[int]]:
        """Return an epoch's batches and the number of samples before each."""
        lengths = self._lengths[self._numbers]
        batches = [
            self._numbers[batch]
            for batch in training_batches(lengths, self._batch_size, self._seed, epoch)
        ]
        return batches, list(accumulate((len(batch) for batch in batches[:-1]), initial=0))


class MultiTaskSource:
    """`cloze.model.train.spec.interfaces.BatchSource` of several tasks, one source each.

    A step belongs to one task and continues where that task stopped. An epoch has as many steps as
    all tasks need for one pass, shared in proportion to size^power, at least one each. With power 1
    each task is seen once per epoch. With a lower power, small tasks repeat, and large ones
    continue in the next epoch. The order of tasks is a function of seed and epoch.

    Args:
        power: 1: shares by size; 0: equal shares.
    """

    def __init__(
        self, parts: Sequence[EpochSource], sizes: Sequence[int], power: float, seed: int
    ) -> None:
        self._parts, self._seed = parts, seed
        self.steps_per_epoch = sum(source.steps_per_epoch for source in parts)
        self._shares = shares(sizes, power, self.steps_per_epoch)
        if power == 1:
            self._shares = [source.steps_per_epoch for source in parts]
        self._order = functools.lru_cache(maxsize=2)(self._make_order)  # by epoch

    def step_batches(self, step: int, rank: int, world_size: int) -> StepBatches:
        task, task_step = self._task_at(step)
        return self._parts[task].step_batches(task_step, rank, world_size)

    def samples(self, steps: int) -> int:
        epoch, step_in_epoch = divmod(steps, self.steps_per_epoch)
        steps_by_task = np.bincount(self._order(epoch)[:step_in_epoch], minlength=len(self._parts))
        return sum(
            source.samples(epoch * share + int(count))
            for source, share, count in zip(self._parts, self._shares, steps_by_task, strict=True)
        )

    def row_ids(self, step: int) -> dict[str, list[int]]:
        task, task_step = self._task_at(step)
        return {"task": [task], **self._parts[task].row_ids(task_step)}

    def blank(self) -> Batch:
        """Return a batch with zero loss and gradient."""
        return self._parts[0].blank()

    def _task_at(self, step: int) -> tuple[int, int]:
        """Return the task of a step, and the step's number within that task."""
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        order = self._order(epoch)
        task = int(order[step_in_epoch])
        return task, epoch * self._shares[task] + int((order[:step_in_epoch] == task).sum())

    def _make_order(self, epoch: int) -> I64:
        """Return the task of each step of the epoch."""
        tasks = np.repeat(np.arange(len(self._parts)), self._shares)
        return tasks[shuffled(len(tasks), self._seed, epoch, _MIXED)]


def shares(sizes: Sequence[int], power: float, steps: int) -> list[int]:
    """Share `steps` in proportion to size^power, at least one each, by largest remainder."""
    weights = np.array(sizes, dtype=np.float64) ** power
    exact = weights / weights.sum() * (steps - len(sizes))
    counts = np.floor(exact).astype(np.int64)
    remaining = steps - len(sizes) - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:remaining]] += 1
    return [int(number) + 1 for number in counts]


def source_of(
    samples: Samples,
    *,
    batch_size: int,
    seed: int,
    micro_batch: int,
    layout: LayoutKind = "rows",
    power: float = 1.0,
) -> EpochSource | MultiTaskSource:
    """Return the source of a task's samples; `power` as for `MultiTaskSource`."""
    groups = groups_of(samples)
    epochs = functools.partial(
        EpochSource, samples, batch_size=batch_size, micro_batch=micro_batch, layout=layout
    )
    if len(groups) == 1:
        return epochs(seed=seed)
    seeds = random_keys.fold_in(seed, _MIXED, np.arange(len(groups))) >> np.uint64(1)
    sources = [
        epochs(seed=int(own_seed), indices=group)
        for own_seed, group in zip(seeds, groups, strict=True)
    ]
    return MultiTaskSource(sources, [len(group) for group in groups], power, seed)


@dataclass(frozen=True, slots=True)
class AuxiliarySource:
    """Batches of a task with the masks of an auxiliary objective."""

    source: EpochSource | MultiTaskSource
    auxiliary: Auxiliary

    def step_batches(self, step: int, rank: int, world_size: int) -> StepBatches:
        work = self.source.step_batches(step, rank, world_size)
        masked = [
            replace(item, batch=self.auxiliary.inputs(item.batch, step))
            for item in work.micro_batches
        ]
        return replace(work, micro_batches=masked)

    def samples(self, steps: int) -> int:
        return self.source.samples(steps)

    def row_ids(self, step: int) -> dict[str, list[int]]:
        return self.source.row_ids(step)


# The trained module.


class TaskObjective(WeightedLosses):
    """Training module of a task; logs `train_loss` and `train_accuracy`.

    Attributes:
        task: task that defines the loss.
        layout: batch layout for the network and device, see `cloze.model.data.layouts`.

    Args:
        compiled: True if the layers of the encoder are compiled.
        auxiliary: objective whose loss is added; its batches have its `inputs`.
        teacher_losses: losses against a teacher.
    """

    def __init__(
        self,
        task: Task[Any, Any],
        model: nn.Module,
        precision: Precision,
        device: torch.device,
        *,
        compiled: bool = False,
        auxiliary: Auxiliary | None = None,
        teacher_losses: TeacherLosses | None = None,
    ) -> None:
        weights, networks = {"train": 1.0}, [model]
        if auxiliary is not None:
            weights[auxiliary.objective.name] = auxiliary.weight
        if teacher_losses is not None:
            weights |= {"train": teacher_losses.options.labels, **teacher_losses.weights}
            networks.append(teacher_losses.comparison.teacher)
        super().__init__(model, list(weights), list(weights.values()), precision, device.type)
        self._auxiliary, self._teacher_losses = auxiliary, teacher_losses
        self.task = task
        self.layout: LayoutKind = layout_for(networks, device, DTYPES[precision], compiled=compiled)

    def trial_batch(self, samples: Samples, indices: I64) -> Batch:
        """Return a batch of samples, on the CPU, as the first step would have it."""
        batch = samples.batch(indices, self.layout)
        return batch if self._auxiliary is None else self._auxiliary.inputs(batch, 0)

    def count_targets(self, batch: Batch) -> list[int]:
        counts = [self.task.count(batch)]
        if self._auxiliary is not None:
            counts.append(self._auxiliary.objective.count(batch))
        if self._teacher_losses is not None:
            counts += self._teacher_losses.counts(self.task, batch)
        return [0 if BLANK in batch else count for count in counts]

    def _sums(self, batch: Batch) -> tuple[list[tuple[Tensor, Tensor]], Any]:
        others = list[tuple[Tensor, Tensor]]()
        with self._autocast(batch["input_ids"].device.type):
            if self._teacher_losses is None:
                outputs = self.model(batch)
            else:
                outputs, others = self._teacher_losses.score(self.task, batch)
        sums = [self.task.loss(outputs, batch), *others]
        if self._auxiliary is not None:
            with self._autocast(batch["input_ids"].device.type):
                sums.insert(1, self._auxiliary.score(batch))
        return [(0.0 * own, 0 * right) for own, right in sums] if BLANK in batch else sums, outputs

    def predict(self, batch: Batch) -> Any:
        """Return the network's outputs."""
        with self._autocast(batch["input_ids"].device.type):
            return self.model(batch)
