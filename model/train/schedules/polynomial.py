"""Down to 0 as a power of what is left (tf.train.polynomial_decay): 1 is a straight line, 2 falls faster at first."""

from model.train.schedules import ScheduleKind

SCHEDULE = ScheduleKind(factor=lambda progress, shape: (1.0 - progress) ** shape.power, options=frozenset({"power"}))
