"""The table of learning-rate schedules: pure functions of the step, so that resuming needs no state. No torch here.

A schedule is a file with one function, and a line here: from the share of the steps after the warm-up that are done, in [0, 1),
to the factor that the peak learning rate is multiplied with.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline.core.registry import load

SCHEDULES: dict[str, str] = {
    "linear": "model.train.schedules.linear:linear",
    "constant": "model.train.schedules.constant:constant",
    "cosine": "model.train.schedules.cosine:cosine",
    "sqrt": "model.train.schedules.sqrt:sqrt",
}


def factor(schedule: str, step: int, steps: int, warmup: int) -> float:
    """What the peak learning rate is multiplied with in step `step` (from 0) of `steps`, after a linear warm-up."""
    if step < warmup:
        return (step + 1) / warmup
    found: Callable[[float], float] = load(SCHEDULES[schedule])
    return found((step - warmup) / max(1, steps - warmup))
