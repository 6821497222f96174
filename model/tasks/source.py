"""Where fine-tuning's batches come from: epochs over a task's samples, cut among ranks and into micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from model.data.batch import Batch
from model.data.layouts import Kind
from model.tasks.encode import groups_of, training_batches
from model.tasks.task import Ints, Samples
from model.train.interfaces import MicroBatch, Work
from model.train.sizing import pieces
from pipeline.core import random_keys

BLANK = "blank"  # an entry of a batch that counts for nothing
_MIXED = 2  # random stream, beside those of `training_batches`


@runtime_checkable
class Related(Protocol):
    """Samples that are compared with others of their step: a part of a step's batch brings along what it needs of the whole."""

    def part(self, chosen: Ints, begin: int, end: int, layout: Kind) -> Batch:
        """The samples `chosen[begin:end]` of a step that has all the `chosen`; not empty."""
        ...


class Epochs:
    """A `model.train.interfaces.Source`: every sample once an epoch, in an order that is a function of seed and epoch.

    One batch of an epoch, anywhere in it, is smaller than the others where they do not come out even.

    Args:
        batch_size: samples a step, over all ranks.
        micro_batch: the most samples at once.
        layout: of the batches, see `model.data.layouts`.
        chosen: the numbers of the samples; None: all.
    """

    def __init__(
        self,
        samples: Samples,
        *,
        batch_size: int,
        seed: int,
        micro_batch: int,
        layout: Kind = "rows",
        chosen: Ints | None = None,
    ) -> None:
        self._samples, self._lengths = samples, samples.lengths
        self._numbers = np.arange(len(samples)) if chosen is None else chosen
        self._batch_size, self._seed, self._micro_batch = batch_size, seed, micro_batch
        self._layout: Kind = layout
        self._orders: dict[int, tuple[list[Ints], list[int]]] = {}
        self.steps_per_epoch = -(-len(self._numbers) // batch_size)

    def work(self, step: int, rank: int, world_size: int) -> Work:
        chosen, first = self._chosen(step)
        number = -(-len(chosen) // (world_size * self._micro_batch))
        own = pieces(0, len(chosen), rank, world_size, number)
        return Work(
            micro_batches=[MicroBatch(first + begin, self._batch(chosen, begin, end)) for begin, end in own],
            tokens=int(self._lengths[chosen[own[0][0] : own[-1][1]]].sum()),
        )

    def samples(self, steps: int) -> int:
        epoch, inside = divmod(steps, self.steps_per_epoch)
        return epoch * len(self._numbers) + (self._order(epoch)[1][inside] if inside else 0)

    def rows(self, step: int) -> dict[str, list[int]]:
        return {"rows": self._chosen(step)[0].tolist()}

    def blank(self) -> Batch:
        """A batch whose loss and gradient are 0."""
        return {**self._samples.batch(self._numbers[:1], self._layout), BLANK: torch.ones(())}

    def _batch(self, chosen: Ints, begin: int, end: int) -> Batch:
        if begin == end:
            return self.blank()
        if isinstance(self._samples, Related):
            return self._samples.part(chosen, begin, end, self._layout)
        return self._samples.batch(chosen[begin:end], self._layout)

    def _chosen(self, step: int) -> tuple[Ints, int]:
        """The samples of a step, and the number of the first of them, counted over the whole run."""
        epoch, inside = divmod(step, self.steps_per_epoch)
        batches, begins = self._order(epoch)
        return batches[inside], epoch * len(self._numbers) + begins[inside]

    def _order(self, epoch: int) -> tuple[list[Ints], list[int]]:
        """An epoch's batches, and how many samples stand before each. This epoch's and the next one's are in use at once."""
        found = self._orders.get(epoch)
        if found is None:
            placed = training_batches(self._lengths[self._numbers], self._batch_size, self._seed, epoch)
            batches = [self._numbers[batch] for batch in placed]
            found = batches, list(_before(batches))
            self._orders = {number: order for number, order in self._orders.items() if number >= epoch - 1} | {epoch: found}
        return found


class Mixture:
    """A `model.train.interfaces.Source` over groups of samples that share no batch: several tasks, each with a source of its own.

    A step is one group's, and goes on where that group stood. An epoch has as many steps as all groups take together once, and of these
    a group has a share that goes with size^power, at least one: by size each goes once through its samples, with a lower power the small
    ones go more often and the large ones not to their end, and the next epoch goes on from there. Which steps of an epoch are whose is a
    function of seed and epoch.

    Args:
        parts: a source a group.
        power: 1: shares by size; 0: alike.
    """

    def __init__(self, parts: Sequence[Epochs], sizes: Sequence[int], power: float, seed: int) -> None:
        self._parts, self._seed = parts, seed
        self.steps_per_epoch = sum(part.steps_per_epoch for part in parts)
        self._shares = shares(sizes, power, self.steps_per_epoch)
        if power == 1:
            self._shares = [part.steps_per_epoch for part in parts]
        self._orders: dict[int, Ints] = {}

    def work(self, step: int, rank: int, world_size: int) -> Work:
        part, own = self._whose(step)
        return self._parts[part].work(own, rank, world_size)

    def samples(self, steps: int) -> int:
        epoch, inside = divmod(steps, self.steps_per_epoch)
        done = np.bincount(self._order(epoch)[:inside], minlength=len(self._parts))
        return sum(
            part.samples(epoch * share + int(more)) for part, share, more in zip(self._parts, self._shares, done, strict=True)
        )

    def rows(self, step: int) -> dict[str, list[int]]:
        part, own = self._whose(step)
        return {"task": [part], **self._parts[part].rows(own)}

    def blank(self) -> Batch:
        """A batch whose loss and gradient are 0."""
        return self._parts[0].blank()

    def _whose(self, step: int) -> tuple[int, int]:
        """Which part's step it is, and the number of it among that part's."""
        epoch, inside = divmod(step, self.steps_per_epoch)
        order = self._order(epoch)
        part = int(order[inside])
        return part, epoch * self._shares[part] + int((order[:inside] == part).sum())

    def _order(self, epoch: int) -> Ints:
        """Whose each step of the epoch is."""
        found = self._orders.get(epoch)
        if found is None:
            each = np.repeat(np.arange(len(self._parts)), self._shares)
            found = each[np.argsort(random_keys.derive(self._seed, epoch, _MIXED, np.arange(len(each))), kind="stable")]
            self._orders = {number: order for number, order in self._orders.items() if number >= epoch - 1} | {epoch: found}
        return found


def shares(sizes: Sequence[int], power: float, steps: int) -> list[int]:
    """`steps` shared out by size^power, at least one each, by largest remainder."""
    weights = np.array(sizes, dtype=np.float64) ** power
    wanted = weights / weights.sum() * (steps - len(sizes))
    found = np.floor(wanted).astype(np.int64)
    for place in np.argsort(found - wanted, kind="stable")[: steps - len(sizes) - int(found.sum())]:
        found[place] += 1
    return [int(number) + 1 for number in found]


def source_of(
    samples: Samples, *, batch_size: int, seed: int, micro_batch: int, layout: Kind = "rows", sampling: float = 1.0
) -> Epochs | Mixture:
    """The source of a task's samples; of several tasks' a mixture. Args: sampling: the power of `Mixture`."""
    groups = groups_of(samples)

    def epochs(group: Ints | None, own: int) -> Epochs:
        return Epochs(samples, batch_size=batch_size, seed=own, micro_batch=micro_batch, layout=layout, chosen=group)

    if len(groups) == 1:
        return epochs(None, seed)
    own = random_keys.derive(seed, _MIXED, np.arange(len(groups)))
    parts = [epochs(group, int(one >> np.uint64(1))) for group, one in zip(groups, own, strict=True)]
    return Mixture(parts, [len(group) for group in groups], sampling, seed)


def _before(batches: list[Ints]) -> Iterator[int]:
    return accumulate((len(batch) for batch in batches[:-1]), initial=0)
