"""Learning-rate schedules: pure functions of the step, so that resuming needs no state. No torch here."""

from __future__ import annotations

import math
from collections.abc import Callable


def linear(progress: float) -> float:
    """Down to 0 in a straight line (google-research/bert, optimization.py)."""
    return 1.0 - progress


def constant(progress: float) -> float:
    """As it is."""
    return 1.0


def cosine(progress: float) -> float:
    """Down to 0 along half a cosine (Loshchilov and Hutter, "SGDR", 2017, equation 5)."""
    return 0.5 * (1.0 + math.cos(math.pi * progress))


# Name -> the factor after warm-up, of the share of the remaining steps that are done (in [0, 1)).
SCHEDULES: dict[str, Callable[[float], float]] = {"linear": linear, "constant": constant, "cosine": cosine}


def factor(schedule: str, step: int, steps: int, warmup: int) -> float:
    """What the peak learning rate is multiplied with in step `step` (from 0) of `steps`, after a linear warm-up."""
    if step < warmup:
        return (step + 1) / warmup
    return SCHEDULES[schedule]((step - warmup) / max(1, steps - warmup))
