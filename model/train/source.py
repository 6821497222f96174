"""A dataset's rows as the batches of a pretraining; see `model.train.interfaces.Source`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from model.data.collate import blank, collate
from model.data.directions import WHOLE, Directions
from model.data.layouts import Kind
from model.data.mixture import MixedSampler, MixedShards
from model.data.sampler import Sampler
from model.data.shards import Rows
from model.data.thinning import Thinning
from model.train.batches import Batches
from model.train.interfaces import START, MicroBatch, Position, Work
from model.train.sizing import pieces
from pipeline.dataset.schema import DatasetInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSource:
    """A number of samples in each step, shared out among the ranks, then among each rank's micro-batches.

    Attributes:
        shards: the rows.
        info: what they say of themselves.
        sampler: sample's number -> row and mask copy.
        batches: samples of each step of this phase.
        micro_batch: the most samples at once.
        fixed_predictions: for compiled models: every batch has one shape, and this many masked positions a row.
        layout: how tokens lie on their way through the layers.
        thinning: which of the masks count; None: all.
        directions: which samples are read from left to right.
        begun: the step and the sample that the training begins with.
    """

    shards: Rows
    info: DatasetInfo
    sampler: Sampler | MixedSampler
    batches: Batches
    micro_batch: int
    fixed_predictions: int | None = None
    layout: Kind = "rows"
    thinning: Thinning | None = None
    directions: Directions = WHOLE
    begun: Position = START

    def work(self, step: int, rank: int, world_size: int) -> Work:
        batches, tokens = [], 0
        by_source = np.zeros(len(self.shards.parts) if isinstance(self.shards, MixedShards) else 0, np.int64)
        first, last = self.samples(step), self.samples(step + 1)
        rank_batch = math.ceil((last - first) / world_size)
        accumulation = math.ceil(rank_batch / self.micro_batch)
        for start, stop in pieces(first, last, rank, world_size, accumulation):
            if start == stop:
                batches.append(MicroBatch(start, blank(pad=self.info.special.pad, directions=self.directions)))
                continue
            samples = np.arange(start, stop)
            numbers, copies = self.sampler.locate(samples)
            rows = self.shards.take(numbers, copies)
            if self.thinning is not None:
                rows = self.thinning.thin(rows, samples, step)
            tokens += int(rows.lengths.sum())
            if isinstance(self.shards, MixedShards):
                by_source += self.shards.by_source(numbers, rows.lengths)
            batch = collate(
                rows,
                pad=self.info.special.pad,
                longest=self.info.length,
                fixed_predictions=self.fixed_predictions,
                layout=self.layout,
                directions=self.directions,
                samples=samples,
            )
            batches.append(MicroBatch(start, batch))
        return Work(batches, tokens, by_source.tolist())

    def samples(self, steps: int) -> int:
        return self.begun.sample + self.batches.before(steps - self.begun.step)

    def rows(self, step: int) -> dict[str, list[int]]:
        rows, copies = self.sampler.locate(np.arange(self.samples(step), self.samples(step + 1)))
        if isinstance(self.shards, MixedShards):  # the dataset's number in the order of names, and the row's in the dataset
            sources, rows = self.shards.source(rows), self.shards.local(rows)
            return {"datasets": sources.tolist(), "rows": rows.tolist(), "copies": copies.tolist()}
        return {"rows": rows.tolist(), "copies": copies.tolist()}
