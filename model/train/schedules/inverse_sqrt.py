"""Down as one over the square root of what is done, counted from the beginning of the warm-up, and never to 0 (Vaswani et al. 2017,
section 5.3; fairseq's `inverse_sqrt`): twice the warm-up has the peak over the square root of two.
"""

import math

from model.train.schedules import ScheduleKind, Shape


def inverse_sqrt(progress: float, shape: Shape) -> float:
    return math.sqrt(shape.warmup / (shape.warmup + progress * (1.0 - shape.warmup)))


SCHEDULE = ScheduleKind(factor=inverse_sqrt, needs_warmup=True)
