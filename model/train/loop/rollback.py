"""Rollback to the last good checkpoint after too many consecutive steps with a non-finite gradient.

Skipped steps change nothing, so repeating them would not help either. Going back and skipping the
rows since then helped with loss spikes (Chowdhery et al., "PaLM", 2022, section 5.1): the same
weights did well on other batches. It is done once; the second time training ends and names the
rows. Skipped rows are part of `TrainerState`, so a resume is exact. A kill right after a rollback
needs no record: repeating the steps leads to the same rollback.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from cloze.core import storage
from cloze.core.artifacts import checkpoint_files, checkpoints
from cloze.core.artifacts.fence import Fence
from cloze.core.errors import ClozeError, DataError
from cloze.model import checkpoint
from cloze.model.train.distributed import World
from cloze.model.train.loop.data import DatasetSource
from cloze.model.train.monitor.log import JsonlLog
from cloze.model.train.resume import state
from cloze.model.train.spec.interfaces import BatchSource, StepBatches
from cloze.model.train.spec.progress import TrainerState
from cloze.model.train.spec.train_spec import TrainSpec

FEW = 12  # maximum number of rows named in a message

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SkippingSource:
    """A `BatchSource` that skips steps.

    Attributes:
        skipped_ranges: (step, count) pairs: from that step (from 0) on, `count` more steps of
            the source are skipped.
    """

    source: BatchSource
    skipped_ranges: Sequence[Sequence[int]]

    def _shifted(self, step: int) -> int:
        return step + sum(
            count for first_skipped, count in self.skipped_ranges if step >= first_skipped
        )

    def step_batches(self, step: int, rank: int, world_size: int) -> StepBatches:
        return self.source.step_batches(self._shifted(step), rank, world_size)

    def samples(self, steps: int) -> int:
        return self.source.samples(self._shifted(steps))

    def row_ids(self, step: int) -> dict[str, list[int]]:
        return self.source.row_ids(self._shifted(step))


def pass_over(source: BatchSource, ranges: Sequence[Sequence[int]]) -> BatchSource:
    """Return the source without the rows of skipped steps; `ranges` as in `SkippingSource`.

    A dataset's rows move on alone: mask rates, a growing batch and a retriever's clock go by the
    step, as the learning rate does. Fine-tuning has none of these.
    """
    if isinstance(source, DatasetSource):
        return replace(source, passed=tuple((first, count) for first, count in ranges))
    return SkippingSource(source, ranges) if ranges else source


class RollbackRequired(Exception):
    """Raised on all ranks at once to request a rollback.

    Args:
        step: last skipped step (from 1).
    """

    def __init__(self, step: int, count: int) -> None:
        super().__init__(step, count)
        self.step, self.count = step, count


def roll_back(
    request: RollbackRequired,
    training: TrainSpec,
    progress: TrainerState,
    world: World,
    skips: JsonlLog,
) -> tuple[state.ResumeState, str]:
    """Return the checkpoint to continue from, with `passed` set, and a message.

    Every rank must call it. Later checkpoints are removed.

    Raises:
        ClozeError: training was rolled back before, or no good checkpoint exists.
    """
    failure = (
        f"{request.count} steps in a row up to step {request.step} had a gradient that is not "
        f"finite, or left weights that are not (their rows are in {skips.path}"
    )
    remedy = (
        f"lower learning_rate ({training.hyperparameters.learning_rate:g}), or use precision fp32"
    )
    source = pass_over(training.data.source, progress.passed)
    if progress.passed:
        rows = sorted(set(source.row_ids(request.step - 1).get("rows", [])))
        row_list = ", ".join(map(str, rows[:FEW])) + (", …" if len(rows) > FEW else "")
        raise ClozeError(
            f"{failure}; those of the last are {row_list}), although training went back to step "
            f"{progress.passed[-1][0]} before and passed over the rows that it met then: {remedy}, "
            f"or take these rows out of the data"
        )
    good_step = world.decide_on_rank_zero(
        lambda: _choose(training.path, request.step - request.count, world.fence)
    )
    if good_step < 0:
        raise ClozeError(
            f"{failure}), and there is no good checkpoint before them to go back to; {remedy}"
        )
    restored = state.read(storage.join(training.path, state.step_path(good_step)))
    skipped_ranges = [*restored.progress.passed, [good_step, request.step - good_step]]
    # A resume truncates the log after its step, so a line at the restored step is kept.
    skips.truncate(good_step)
    if not any(line["step"] == good_step and "passed_over" in line for line in skips.read()):
        skipped_steps = range(request.step - request.count, request.step)
        skips.add(
            {
                "step": good_step,
                "passed_over": [good_step + 1, request.step],
                "not_finite": {step + 1: source.row_ids(step) for step in skipped_steps},
            }
        )
    message = (
        f"rolled back to step {good_step}: {failure}); training continues from there and skips the "
        f"rows of steps {good_step + 1} to {request.step}; if it happens again, it ends: {remedy}"
    )
    return replace(restored, progress=replace(restored.progress, passed=skipped_ranges)), message


def _choose(path: str, last: int, fence: Fence) -> int:
    """Return the newest good step up to `last`, or -1, and remove all later checkpoints."""
    later: list[str] = []
    for directory in reversed(checkpoints.complete_steps(path)):
        if checkpoints.parse_step(directory) <= last and _good(directory):
            with fence.locked():
                for stale in later:
                    checkpoint.clear(stale)  # its step will be saved again; pins do not protect it
            return checkpoints.parse_step(directory)
        later.append(directory)
    return -1


def _good(directory: str) -> bool:
    """Return True if the checkpoint is undamaged, finite, and not from a run of skipped steps."""
    try:
        checkpoint_files.verify(directory)
        resume_state = state.read(directory)
    except DataError as error:
        log.warning("passed over: %s", error)
        return False
    return (
        # A stop saves between skipped steps, too, and its weights are those that fail.
        resume_state.progress.skipped_in_a_row == 0
        and all_finite(resume_state.weights)
        and all_finite(resume_state.optimizer)
    )


def require_finite_weights(model: nn.Module, world: World, progress: TrainerState) -> None:
    """Raise `RollbackRequired` unless all weights are finite. Each rank checks its part."""
    finite = all_finite(
        {name: _own_part(weight, world.rank) for name, weight in model.named_parameters()}
    )
    if world.all_reduce_sum([int(not finite)])[0]:
        raise RollbackRequired(progress.step, max(1, progress.skipped_in_a_row))


def _own_part(weight: Any, rank: int) -> Tensor:
    """Return a rank's part of a weight: all of it, a DTensor's rows, or DeepSpeed's `ds_tensor`.

    The last ranks' `ds_tensor` ends in padding, which DeepSpeed never initializes.
    """
    part: Any = getattr(weight, "ds_tensor", getattr(weight, "_local_tensor", weight))
    if hasattr(weight, "ds_tensor"):
        part = part[: max(0, weight.ds_numel - rank * part.numel())]
    return cast("Tensor", part)


def all_finite(tensors: Mapping[str, Tensor]) -> bool:
    """Return True if the tensors contain neither NaN nor infinity."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
