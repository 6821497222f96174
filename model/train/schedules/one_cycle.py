"""One cycle (Smith and Topin, "Super-Convergence", 2018): up to the peak along half a cosine, and down to 0 along another.

The rise is what the warm-up says, three tenths where it says nothing, as `torch.optim.lr_scheduler.OneCycleLR`, and begins at a 25th of
the peak, as there.
"""

import math

from model.train.schedules import ScheduleKind, Shape

RISE, LOWEST = 0.3, 1 / 25


def one_cycle(progress: float, shape: Shape) -> float:
    rise = shape.warmup or RISE
    if progress < rise:
        return LOWEST + (1.0 - LOWEST) * 0.5 * (1.0 - math.cos(math.pi * progress / rise))
    return 0.5 * (1.0 + math.cos(math.pi * (progress - rise) / max(1e-9, 1.0 - rise)))


SCHEDULE = ScheduleKind(factor=one_cycle, rises=False)
