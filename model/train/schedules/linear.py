"""Down to 0 in a straight line (google-research/bert, optimization.py)."""

from model.train.schedules import ScheduleKind

SCHEDULE = ScheduleKind(factor=lambda progress, shape: 1.0 - progress)
