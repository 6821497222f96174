"""Where fine-tuning's batches come from: epochs over a task's samples, cut among ranks and into micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import torch

from model.data.batch import Batch
from model.data.layouts import Kind
from model.tasks.encode import training_batches
from model.tasks.task import Ints, Samples
from model.train.interfaces import MicroBatch, Work
from model.train.sizing import pieces

BLANK = "blank"  # an entry of a batch that counts for nothing


class Epochs:
    """A `model.train.interfaces.Source`: every sample once an epoch, in an order that is a function of seed and epoch.

    One batch of an epoch, anywhere in it, is smaller than the others where they do not come out even.

    Args:
        batch_size: samples a step, over all ranks.
        micro_batch: the most samples at once.
        layout: of the batches, see `model.data.layouts`.
    """

    def __init__(self, samples: Samples, *, batch_size: int, seed: int, micro_batch: int, layout: Kind = "rows") -> None:
        self._samples, self._lengths = samples, samples.lengths
        self._batch_size, self._seed, self._micro_batch = batch_size, seed, micro_batch
        self._layout: Kind = layout
        self._orders: dict[int, tuple[list[Ints], list[int]]] = {}
        self.steps_per_epoch = -(-len(samples) // batch_size)

    def work(self, step: int, rank: int, world_size: int) -> Work:
        chosen, first = self._chosen(step)
        number = -(-len(chosen) // (world_size * self._micro_batch))
        own = pieces(0, len(chosen), rank, world_size, number)
        return Work(
            micro_batches=[MicroBatch(first + begin, self._batch(chosen[begin:end])) for begin, end in own],
            tokens=int(self._lengths[chosen[own[0][0] : own[-1][1]]].sum()),
        )

    def samples(self, steps: int) -> int:
        epoch, inside = divmod(steps, self.steps_per_epoch)
        return epoch * len(self._samples) + (self._order(epoch)[1][inside] if inside else 0)

    def rows(self, step: int) -> dict[str, list[int]]:
        return {"rows": self._chosen(step)[0].tolist()}

    def blank(self) -> Batch:
        """A batch whose loss and gradient are 0."""
        return {**self._samples.batch(np.zeros(1, dtype=np.int64), self._layout), BLANK: torch.ones(())}

    def _batch(self, chosen: Ints) -> Batch:
        return self._samples.batch(chosen, self._layout) if len(chosen) else self.blank()

    def _chosen(self, step: int) -> tuple[Ints, int]:
        """The samples of a step, and the number of the first of them, counted over the whole run."""
        epoch, inside = divmod(step, self.steps_per_epoch)
        batches, begins = self._order(epoch)
        return batches[inside], epoch * len(self._samples) + begins[inside]

    def _order(self, epoch: int) -> tuple[list[Ints], list[int]]:
        """An epoch's batches, and how many samples stand before each. This epoch's and the next one's are in use at once."""
        found = self._orders.get(epoch)
        if found is None:
            batches = training_batches(self._lengths, self._batch_size, self._seed, epoch)
            found = batches, list(_before(batches))
            self._orders = {number: order for number, order in self._orders.items() if number >= epoch - 1} | {epoch: found}
        return found


def _before(batches: list[Ints]) -> Iterator[int]:
    return accumulate((len(batch) for batch in batches[:-1]), initial=0)
