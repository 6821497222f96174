"""Down to 0 as one minus the square root of what is done (Hägele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed
Training Durations", 2024, section 3): the decay after a constant learning rate, as a phase of its own. `wsd` is both in one.
"""

import math

from model.train.schedules import ScheduleKind

SCHEDULE = ScheduleKind(factor=lambda progress, shape: 1.0 - math.sqrt(progress))
