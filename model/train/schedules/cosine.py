"""Down to 0 along half a cosine (Loshchilov and Hutter, "SGDR", 2017, equation 5)."""

import math

from model.train.schedules import ScheduleKind

SCHEDULE = ScheduleKind(factor=lambda progress, shape: 0.5 * (1.0 + math.cos(math.pi * progress)))
