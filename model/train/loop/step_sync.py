"""Preparation of steps in a thread, and their synchronization over the ranks.

Before each step the ranks sum in one small message its tokens and targets, their stop requests, and
rank 0's save timer. Gradients are thus weighted by global counts however the batch is split, and
all ranks stop and save after the same step. With several ranks the message for a step is sent while
the previous step runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from cloze.model.data.batch import TokenCounts, pin, sizes
from cloze.model.train.distributed import World
from cloze.model.train.loop.interfaces import BatchSource, MicroBatch
from cloze.model.train.loop.train_spec import TrainSpec


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A step's micro-batches on this rank.

    Attributes:
        step: number of the step, from 0.
        tokens: number of real tokens.
        sizes: token counts for the throughput.
        counts: number of targets by objective.
        by_source: real tokens of each dataset of a mixture.
    """

    step: int
    micro_batches: list[MicroBatch]
    tokens: int
    sizes: TokenCounts
    counts: list[int]
    by_source: list[int]


@dataclass(frozen=True, slots=True)
class SyncedStep:
    """The values of a step that all ranks agree on: requests, and sums of `PreparedStep`.

    Attributes:
        stop, save: True to stop or save before the step.
        last: number of the last step that rank 0 has fixed; 0: none.
    """

    stop: bool
    save: bool
    last: int
    tokens: int
    counts: list[int]
    by_source: list[int]


@dataclass(frozen=True, slots=True)
class LocalRequests:
    """Requests of this rank, polled once per step.

    Attributes:
        stop: True to stop.
        save: True to save a checkpoint; polled on rank 0.
        fix: fixes the last step; called on rank 0, see `cloze.model.train.loop.duration.Duration`.
        over: True if the newest step is the last one, which all ranks know without a message.
    """

    stop: Callable[[], bool]
    save: Callable[[], bool]
    fix: Callable[[int], int] = lambda step: 0
    over: Callable[[], bool] = lambda: False


def prepare(
    training: TrainSpec, source: BatchSource, world: World, first: int
) -> Iterator[PreparedStep]:
    """Yield every step from `first` on; runs in the prefetch thread."""
    total_steps = training.recipe.pace.steps
    for step in count(first) if total_steps is None else range(first, total_steps):
        work = source.step_batches(step, world.rank, world.size)
        counts = [training.trained.count_targets(item.batch) for item in work.micro_batches]
        yield PreparedStep(
            step=step,
            micro_batches=[
                MicroBatch(item.first, pin(item.batch, world.device)) for item in work.micro_batches
            ],
            tokens=work.tokens,
            sizes=sum((sizes(item.batch) for item in work.micro_batches), TokenCounts()),
            counts=np.sum(counts, axis=0).tolist(),
            by_source=list(work.by_source),
        )


def sync_steps(
    steps: Iterable[PreparedStep], world: World, asks: LocalRequests
) -> Iterator[tuple[PreparedStep, SyncedStep]]:
    """Yield each step with the values that the ranks agree on.

    A single process polls its requests just before the step. Several ranks send the next step's
    message before they run the current step, so requests take effect one step later.
    """
    if world.size == 1:
        for step in steps:
            yield step, _begin(step, world, asks)()
            if asks.over():
                return
        return
    pending: tuple[PreparedStep, Callable[[], SyncedStep]] | None = None
    for step in steps:
        started = step, _begin(step, world, asks)
        if pending is not None:
            yield pending[0], pending[1]()
            if asks.over():
                started[1]()  # completes the collective that is already started
                return
        pending = started
    if pending is not None:
        yield pending[0], pending[1]()


def _begin(step: PreparedStep, world: World, asks: LocalRequests) -> Callable[[], SyncedStep]:
    last = asks.fix(step.step) if world.is_rank_zero else 0
    requests = [int(asks.stop()), int(world.is_rank_zero and asks.save()), last]
    sums = world.all_reduce_sum_async([*requests, step.tokens, *step.by_source, *step.counts])

    def agreed() -> SyncedStep:
        stop, save, last, tokens, *remaining = sums()
        by_source, counts = remaining[: len(step.by_source)], remaining[len(step.by_source) :]
        return SyncedStep(bool(stop), bool(save), last, tokens, counts, by_source)

    return agreed
