"""The stage merge: weighted mean of several checkpoints of one training."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from torch import Tensor

from cloze.core.artifacts import checkpoints
from cloze.core.errors import UsageError
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.model import checkpoint

CHECKPOINT = "checkpoint"
LAST = 3  # default number of checkpoints


def run(build: BuildContext, last: int | None, steps: Sequence[int], decay: float) -> StageResult:
    """Write the weighted mean of checkpoints as a new checkpoint.

    Args:
        last: number of newest checkpoints; None: `LAST`.
        steps: steps of the checkpoints, instead of `last`.
        decay: weight of each checkpoint relative to the next newer one.

    Returns:
        summary: `checkpoint`; `merged`, the steps; `weights`; `parameters`.

    Raises:
        UsageError: the training does not keep the requested checkpoints.
        DataError: a checkpoint is damaged.
    """
    with contextlib.ExitStack() as hold:
        chosen = choose(build.inputs["checkpoint"], last or LAST, steps)
        for path in chosen:
            hold.enter_context(checkpoints.pinned(path))
            checkpoint.verify(path, training=False)
        weights = shares(len(chosen), decay)
        newest = checkpoint.load_metadata(chosen[-1])
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
    checkpoint.finalize(build.file(CHECKPOINT))
    return StageResult(
        summary={
            "checkpoint": CHECKPOINT,
            "merged": [checkpoints.parse_step(path) for path in chosen],
            "weights": [round(weight, 6) for weight in weights],
            "parameters": sum(tensor.numel() for tensor in state.values()),
        }
    )


def choose(path: str, last: int, steps: Sequence[int]) -> list[str]:
    """Return the directories of the training's checkpoints to merge, oldest first.

    Raises:
        UsageError: the training does not keep them.
    """
    kept = {
        checkpoints.parse_step(directory): directory
        for directory in checkpoints.complete_steps(path)
    }
    there = (
        f"keeps checkpoints of {len(kept)} step{'' if len(kept) == 1 else 's'} "
        f"({', '.join(map(str, kept)) or 'none'})"
    )
    remedy = "train with keep_for_merge or milestone_every, which keep more"
    if steps:
        lacking = sorted(set(steps) - kept.keys())
        if lacking:
            raise UsageError(
                f"{path} {there} and not of {', '.join(map(str, lacking))}; name some of these, or "
                f"{remedy}"
            )
        return [kept[step] for step in sorted(set(steps))]
    if len(kept) < last:
        raise UsageError(f"{path} {there}, last asks for {last}; lower it, or {remedy}")
    return list(kept.values())[-last:]


def shares(count: int, decay: float) -> list[float]:
    """Return the normalized weights of `count` checkpoints, oldest first."""
    raw = [decay ** (count - 1 - number) for number in range(count)]
    return [weight / sum(raw) for weight in raw]


def mean(directories: Sequence[str], weights: Sequence[float]) -> dict[str, Tensor]:
    """Return the weighted mean of complete checkpoints, fp32, summed in fp64 tensor by tensor."""
    found, files = dict[str, Tensor](), [checkpoint.weights(directory) for directory in directories]
    for name in files[0]:
        total = weights[0] * files[0][name].double()
        for weight, other in zip(weights[1:], files[1:], strict=True):
            total += weight * other[name].double()
        found[name] = total.float()
    for one in files:
        one.clear()
    return found
