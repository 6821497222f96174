"""`python -m tests.faults.worker JOB`: the trainer's worker with a fault of its own, which
`CLOZE_TEST_FAULT` names.

poison FIRST LAST       samples FIRST to LAST - 1 give no finite loss
hang RANK CALL          rank RANK never comes back from its CALL-th forward pass
no-data RANK STEP       nor from making its batch of step STEP
never-LIMIT RANK PLACE  nor from PLACE (start, evaluate, save), which may take LIMIT seconds here
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from cloze.core.stages import worker as stages_worker
from cloze.core.stages.worker import main
from cloze.model.train import pretraining
from cloze.model.train.evaluate import heldout, scoring
from cloze.model.train.loop.data import DatasetSource
from cloze.model.train.monitor import watchdog
from cloze.model.train.resume.saving import CheckpointSaver
from cloze.model.train.spec.interfaces import MicroBatch, StepBatches

FAULT = "CLOZE_TEST_FAULT"
POISON = "poison"


def before_forward(act: Callable[[int], None]) -> None:
    """Call `act` with the number of each forward pass, from 1, on the rank that is faulty."""
    forward, calls = scoring.PretrainModule._loss, [0]

    def faulty(self: Any, *arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        act(calls[0])
        return forward(self, *arguments, **named)

    scoring.PretrainModule._loss = faulty  # type: ignore[method-assign]


def poison(first: int, last: int) -> None:
    """These samples' losses are not finite."""
    make, forward = DatasetSource.step_batches, scoring.PretrainModule._loss

    def marked(self: DatasetSource, step: int, rank: int, world_size: int) -> StepBatches:
        work = make(self, step, rank, world_size)
        bad = first <= self.samples(step) < last
        batches = [
            MicroBatch(item.first, {**item.batch, POISON: torch.ones(())} if bad else item.batch)
            for item in work.micro_batches
        ]
        return StepBatches(batches, work.tokens)

    def faulty(self: Any, batch: Any, *arguments: Any, **named: Any) -> Any:
        loss, *figures = forward(self, batch, *arguments, **named)
        return (loss * float("nan") if POISON in batch else loss, *figures)

    DatasetSource.step_batches = marked  # type: ignore[method-assign]
    scoring.PretrainModule._loss = faulty  # type: ignore[method-assign]


def no_data(at: int) -> None:
    """The batch of that step is never made."""
    make = DatasetSource.step_batches

    def faulty(self: DatasetSource, step: int, rank: int, world_size: int) -> StepBatches:
        if step + 1 == at:
            time.sleep(1e6)
        return make(self, step, rank, world_size)

    DatasetSource.step_batches = faulty  # type: ignore[method-assign]


def never(place: str, seconds: float) -> None:
    """Hang in that place, whose limit is short."""
    watchdog.LONG_SECONDS = seconds
    owner, name = {
        "start": (pretraining, "prepare"),
        "evaluate": (heldout, "evaluate"),
        "save": (CheckpointSaver, "_write"),
    }[place]
    if place == "start":
        stages_worker.START_SECONDS = seconds
    setattr(owner, name, lambda *_, **__: time.sleep(1e6))


def hang(at: int, call: int) -> None:
    if call == at:
        time.sleep(1e6)


def inject(words: list[str]) -> None:
    """Take a fault on, if it is this rank's."""
    if not words:
        return
    kind, *values = words
    if kind == "poison":
        poison(int(values[0]), int(values[1]))
    if values[0] != os.environ.get("RANK", "0"):
        return
    if kind.startswith("never-"):
        never(values[1], float(kind.removeprefix("never-")))
    elif kind == "hang":
        before_forward(lambda call: hang(int(values[1]), call))
    elif kind == "no-data":
        no_data(int(values[1]))


if __name__ == "__main__":
    inject(os.environ.get(FAULT, "").split())
    sys.exit(main("cloze.model"))
