"""Too many steps in a row had no finite gradient: back to the last good checkpoint, and on with other rows.

Steps that are skipped change nothing, so neither would trying them again. Going back and passing over the rows since then is what helped
where a loss ran away (Chowdhery et al., "PaLM", 2022, section 5.1): the same weights did well with other batches. It is done once; if it
happens again, the training ends, and names the rows.

What was passed over is part of `Progress`, so what comes after is exact on resume. A kill right after going back needs no record: the
steps up to there come to the same end again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from model import checkpoint
from model.train import state
from model.train.distributed import World
from model.train.interfaces import Source, Training, Work
from model.train.metrics import Lines
from pipeline.core import checkpoints, storage
from pipeline.core.errors import ClozeError, DataError

FEW = 12  # rows named in a sentence

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Passing:
    """A `Source` that passes over steps.

    Attributes:
        passed: (step, count): from that step (from 0) on, so many more of the source's steps lie behind.
    """

    source: Source
    passed: Sequence[Sequence[int]]

    def _place(self, step: int) -> int:
        return step + sum(count for at, count in self.passed if step >= at)

    def work(self, step: int, rank: int, world_size: int) -> Work:
        return self.source.work(self._place(step), rank, world_size)

    def samples(self, steps: int) -> int:
        return self.source.samples(self._place(steps))

    def rows(self, step: int) -> dict[str, list[int]]:
        return self.source.rows(self._place(step))


class RollBack(Exception):
    """Raised on all ranks alike. Args: step: the last one (from 1) that was skipped; count: how many were in a row."""

    def __init__(self, step: int, count: int) -> None:
        super().__init__(step, count)
        self.step, self.count = step, count


def go_back(
    found: RollBack, training: Training, progress: state.Progress, world: World, skips: Lines
) -> tuple[state.Resumed, str]:
    """The checkpoint to go on from, its `passed` set; later ones are removed. And what to say of it. Every rank calls it.

    Raises:
        ClozeError: it went back before, or there is nothing to go back to.
    """
    failed = (
        f"{found.count} steps in a row up to step {found.step} had a gradient that is not finite, or left weights that are not (their rows are in"
        f" {skips.path}"
    )
    remedy = f"lower learning_rate ({training.recipe.learning_rate:g}), or use precision fp32"
    if progress.passed:
        rows = sorted(set(Passing(training.source, progress.passed).rows(found.step - 1).get("rows", [])))
        named = ", ".join(map(str, rows[:FEW])) + (", …" if len(rows) > FEW else "")
        at = progress.passed[-1][0]
        raise ClozeError(
            f"{failed}; those of the last are {named}), although training went back to step {at} before and passed over the rows that"
            f" it met then: {remedy}, or take these rows out of the data"
        )
    chosen = world.first_decides(lambda: _choose(training.path, found.step - found.count))
    if chosen < 0:
        raise ClozeError(f"{failed}), and there is no good checkpoint before them to go back to; {remedy}")
    before = state.read(storage.join(training.path, checkpoints.STEPS, checkpoints.step_name(chosen)))
    passed = [*before.progress.passed, [chosen, found.step - chosen]]
    _record(skips, training, progress, chosen, found)
    sentence = (
        f"WENT BACK TO STEP {chosen}: {failed}); training goes on from there and passes over the rows of steps {chosen + 1} to"
        f" {found.step}; if it happens again, it ends: {remedy}"
    )
    return replace(before, progress=replace(before.progress, passed=passed)), sentence


def _choose(path: str, last: int) -> int:
    """The step of the newest good checkpoint up to step `last`; -1: there is none. Removes those after it."""
    later: list[str] = []
    for directory in reversed(checkpoints.complete_steps(path)):
        if checkpoints.step_of(directory) <= last and _good(directory):
            for other in later:
                checkpoint.clear(other)  # its step comes again; even from a reader
            return checkpoints.step_of(directory)
        later.append(directory)
    return -1


def _good(directory: str) -> bool:
    """Whether a checkpoint is whole, no step of a row of skipped ones, and finite."""
    try:
        checkpoint.verify(directory)
        found = state.read(directory)
    except DataError as error:
        log.warning("passed over: %s", error)
        return False
    return found.progress.skipped_in_a_row == 0 and finite(found.weights) and finite(found.optimizer)


def sound(model: nn.Module, world: World) -> bool:
    """Whether all weights are finite, on all ranks; of weights that are shared out, each looks at its own part."""
    own = finite({name: getattr(value, "ds_tensor", value) for name, value in model.named_parameters()})
    return not world.total([int(not own)])[0]


def finite(tensors: Mapping[str, Tensor]) -> bool:
    """Whether there is no NaN and no infinity in them."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())


def _record(skips: Lines, training: Training, progress: state.Progress, chosen: int, found: RollBack) -> None:
    """In `skipped.jsonl`: what was passed over, at the step that training goes on from, so that no resume cuts it away."""
    source = Passing(training.source, progress.passed)
    bad = range(found.step - found.count, found.step)
    skips.cut(chosen)
    if not any(line["step"] == chosen and "passed_over" in line for line in skips.read()):
        skips.add(
            {
                "step": chosen,
                "passed_over": [chosen + 1, found.step],
                "not_finite": {step + 1: source.rows(step) for step in bad},
            }
        )
