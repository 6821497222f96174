"""A task's examples as the batches of a fine-tuning; see `model.train.interfaces.Source`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from model.data.layouts import Kind
from model.tasks.encode import Encoded, Ints, blank, collate, training_batches
from model.train.interfaces import MicroBatch, Work
from model.train.sizing import pieces


@dataclass(slots=True, kw_only=True)
class ExamplesSource:
    """Every example once an epoch, in batches of like length; a step is a batch, and one of each epoch may be smaller.

    Attributes:
        data: the encoded examples.
        batch_size: the most examples a step.
        accumulation: micro-batches a step and rank.
        seed: of the order.
        layout: how tokens lie on their way through the layers.
    """

    data: Encoded
    batch_size: int
    accumulation: int
    seed: int
    layout: Kind = "rows"
    _epochs: dict[int, tuple[list[Ints], Ints]] = field(default_factory=dict)

    @property
    def steps_an_epoch(self) -> int:
        return math.ceil(len(self.data) / self.batch_size)

    def work(self, step: int, rank: int, world_size: int) -> Work:
        chosen, begin = self._batch(step)
        batches, tokens = [], 0
        for start, stop in pieces(0, len(chosen), rank, world_size, self.accumulation):
            if start == stop:
                batches.append(MicroBatch(begin + start, blank(self.data)))
                continue
            batch = collate(self.data, chosen[start:stop], self.layout)
            tokens += int(batch["attention_mask"].sum())
            batches.append(MicroBatch(begin + start, batch))
        return Work(batches, tokens)

    def samples(self, steps: int) -> int:
        epoch, number = divmod(steps, self.steps_an_epoch)
        return epoch * len(self.data) + (int(self._epoch(epoch)[1][number]) if number else 0)

    def rows(self, step: int) -> dict[str, list[int]]:
        return {"rows": self._batch(step)[0].tolist()}

    def _batch(self, step: int) -> tuple[Ints, int]:
        """A step's examples, and the number of its first one counted over the run."""
        epoch, number = divmod(step, self.steps_an_epoch)
        batches, starts = self._epoch(epoch)
        return batches[number], epoch * len(self.data) + int(starts[number])

    def _epoch(self, epoch: int) -> tuple[list[Ints], Ints]:
        """An epoch's batches, and where each begins in it."""
        if epoch not in self._epochs:
            batches = training_batches(self.data.lengths, self.batch_size, self.seed, epoch)
            starts = np.concatenate([[0], np.cumsum([len(batch) for batch in batches])]).astype(np.int64)
            self._epochs = {epoch: (batches, starts)}  # the one that training goes through
        return self._epochs[epoch]
