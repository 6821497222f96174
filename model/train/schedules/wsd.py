"""Warm-up, stable, decay: the peak, and at the end one minus the square root of how far the decay is (Hägele et al. 2024, section 3)."""

import math

from model.train.schedules import ScheduleKind, Shape


def wsd(progress: float, shape: Shape) -> float:
    done = shape.warmup + progress * (1.0 - shape.warmup)  # of the whole, as the decay's share is
    falling = 1.0 - (1.0 - done) / min(shape.decay, 1.0 - shape.warmup)
    return 1.0 if falling <= 0.0 else 1.0 - math.sqrt(min(falling, 1.0))


SCHEDULE = ScheduleKind(factor=wsd, options=frozenset({"decay"}))
