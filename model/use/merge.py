"""The mean of several checkpoints of one training."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from torch import Tensor

from model import checkpoint
from pipeline.core import checkpoints
from pipeline.core.errors import UsageError
from pipeline.core.stage import Build, Outcome

CHECKPOINT = "checkpoint"
LAST = 3  # checkpoints, where nothing is said


def run(build: Build, last: int | None, steps: Sequence[int], decay: float) -> Outcome:
    """Write the mean of the checkpoints as one more.

    Args:
        last: the newest so many; None: `LAST`.
        steps: instead of these, those after such steps.
        decay: what each one counts, of the next.

    Returns:
        summary: `checkpoint`; `merged`, the steps; `weights`, what each counts; `parameters`.

    Raises:
        UsageError: the training keeps too few checkpoints, or not those that were asked for.
        DataError: one of them is damaged.
    """
    with contextlib.ExitStack() as hold:
        chosen = choose(build.inputs["checkpoint"], last or LAST, steps)
        for path in chosen:
            hold.enter_context(checkpoints.held(path))
            checkpoint.verify(path, training=False)
        weights = shares(len(chosen), decay)
        newest = checkpoint.described(chosen[-1])
        state = mean(chosen, weights)
        checkpoint.save_weights(
            build.file(CHECKPOINT),
            model=newest.model,
            state=state,
            tokenizer=newest.tokenizer,
            heads=newest.heads,
            task=newest.task,
            dataset=newest.dataset,
            datasets=newest.datasets,
            step=newest.step,
        )
    checkpoint.complete(build.file(CHECKPOINT))
    return Outcome(
        summary={
            "checkpoint": CHECKPOINT,
            "merged": [checkpoints.step_of(path) for path in chosen],
            "weights": [round(weight, 6) for weight in weights],
            "parameters": sum(tensor.numel() for tensor in state.values()),
        }
    )


def choose(path: str, last: int, steps: Sequence[int]) -> list[str]:
    """The checkpoint directories of the training at `path` that are to be merged, oldest first.

    Raises:
        UsageError: it does not keep them.
    """
    kept = {checkpoints.step_of(directory): directory for directory in checkpoints.complete_steps(path)}
    there = f"keeps checkpoints of {len(kept)} step{'' if len(kept) == 1 else 's'} ({', '.join(map(str, kept)) or 'none'})"
    remedy = "train with keep_last or milestone_every, which keep more"
    if steps:
        lacking = sorted(set(steps) - kept.keys())
        if lacking:
            raise UsageError(f"{path} {there} and not of {', '.join(map(str, lacking))}; name some of these, or {remedy}")
        return [kept[step] for step in sorted(set(steps))]
    if len(kept) < last:
        raise UsageError(f"{path} {there}, last asks for {last}; lower it, or {remedy}")
    return list(kept.values())[-last:]


def shares(count: int, decay: float) -> list[float]:
    """What each of so many checkpoints counts, oldest first; together 1."""
    raw = [decay ** (count - 1 - number) for number in range(count)]
    return [weight / sum(raw) for weight in raw]


def mean(directories: Sequence[str], weights: Sequence[float]) -> dict[str, Tensor]:
    """The weighted mean of complete checkpoints of one training, fp32, added up in fp64, one tensor after another."""
    found, files = dict[str, Tensor](), [checkpoint.weights(directory) for directory in directories]
    for name in files[0]:
        total = weights[0] * files[0][name].double()
        for weight, other in zip(weights[1:], files[1:], strict=True):
            total += weight * other[name].double()
        found[name] = total.float()
    for one in files:
        one.clear()
    return found
