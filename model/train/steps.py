"""What a step needs before it runs: its batches, made ahead in a thread, and what all ranks agree on.

Before each step the ranks add up, in one small message, its tokens and targets, whether anybody was asked to stop, and whether
the first rank's clock says that a checkpoint is due. So gradients are weighted by global counts however the batch is cut, and all
ranks stop and save after the same step. With several ranks the message for a step is under way while the one before it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from model.data.batch import pin
from model.data.sizes import Sizes, sizes
from model.train.distributed import World
from model.train.interfaces import MicroBatch, Source, Training
from model.train.pace import Told


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step's number (from 0), its micro-batches on this rank, and what they hold: real tokens, their sizes, those of each dataset of a
    mixture, and targets by objective.
    """

    step: int
    micro_batches: list[MicroBatch]
    tokens: int
    sizes: Sizes
    counts: list[int]
    by_source: list[int]


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks know of a step before it runs: whether to stop or to save first, what the first rank tells of its time, the
    sums of `Prepared`, and what each rank has told of its own time.
    """

    stop: bool
    save: bool
    told: Told
    tokens: int
    counts: list[int]
    own: list[int]
    by_source: list[int]


@dataclass(frozen=True, slots=True)
class Asks:
    """What this rank asks for, looked at once a step: to stop, and to save a checkpoint (the first rank alone).

    Attributes:
        tell: what the first rank tells of a step's time; see `model.train.pace.Pace`.
        over: whether the step that was given last is the last one, which all ranks know by themselves.
        own: microseconds that this rank did not wait for the others, since it was asked last; see `model.train.waits`.
    """

    stop: Callable[[], bool]
    save: Callable[[], bool]
    tell: Callable[[int], Told]
    over: Callable[[], bool] = lambda: False
    own: Callable[[], int] = lambda: 0


def prepare(training: Training, source: Source, world: World, first: int) -> Iterator[Prepared]:
    """Every step from step `first` on. Runs in the prefetch thread."""
    last = training.recipe.pace.steps
    for step in count(first) if last is None else range(first, last):
        work = source.work(step, world.rank, world.size)
        counts = [training.trained.targets(item.batch) for item in work.micro_batches]
        yield Prepared(
            step=step,
            micro_batches=[MicroBatch(item.first, pin(item.batch, world.device)) for item in work.micro_batches],
            tokens=work.tokens,
            sizes=sum((sizes(item.batch) for item in work.micro_batches), Sizes()),
            counts=np.sum(counts, axis=0).tolist(),
            by_source=list(work.by_source),
        )


def agree(steps: Iterable[Prepared], world: World, asks: Asks) -> Iterator[tuple[Prepared, Agreed]]:
    """Each step with what the ranks agree on of it.

    One process asks itself just before the step. Several send the next step's message before this one is given: what is asked
    while a step runs takes effect one step later.
    """
    if world.size == 1:
        for step in steps:
            yield step, _begin(step, world, asks)()
            if asks.over():
                return
        return
    ahead: tuple[Prepared, Callable[[], Agreed]] | None = None
    for step in steps:
        following = step, _begin(step, world, asks)
        if ahead is not None:
            yield ahead[0], ahead[1]()
            if asks.over():
                following[1]()  # its message is under way
                return
        ahead = following
    if ahead is not None:
        yield ahead[0], ahead[1]()


def _begin(step: Prepared, world: World, asks: Asks) -> Callable[[], Agreed]:
    told = asks.tell(step.step) if world.first else (0, 0)
    own = [0] * world.size
    own[world.rank] = asks.own()
    sums = world.begin_total(
        [int(asks.stop()), int(world.first and asks.save()), *told, step.tokens, *own, *step.by_source, *step.counts]
    )

    def agreed() -> Agreed:
        stop, save, begins, ends, tokens, *rest = sums()
        own, rest = rest[: world.size], rest[world.size :]
        by_source, counts = rest[: len(step.by_source)], rest[len(step.by_source) :]
        return Agreed(bool(stop), bool(save), (begins, ends), tokens, counts, own, by_source)

    return agreed
