"""Batches of a task with the masks of an auxiliary objective."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cloze.model.tasks.auxiliary import Auxiliary
from cloze.model.tasks.source import EpochSource, MultiTaskSource
from cloze.model.train.spec.interfaces import StepBatches


@dataclass(frozen=True, slots=True)
class AuxiliarySource:
    """`cloze.model.train.spec.interfaces.BatchSource` that adds the masks of an objective."""

    source: EpochSource | MultiTaskSource
    auxiliary: Auxiliary

    def step_batches(self, step: int, rank: int, world_size: int) -> StepBatches:
        work = self.source.step_batches(step, rank, world_size)
        return replace(
            work,
            micro_batches=[
                replace(item, batch=self.auxiliary.inputs(item.batch, step))
                for item in work.micro_batches
            ],
        )

    def samples(self, steps: int) -> int:
        return self.source.samples(steps)

    def row_ids(self, step: int) -> dict[str, list[int]]:
        return self.source.row_ids(step)
