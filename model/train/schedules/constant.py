"""The peak learning rate to the end."""

from model.train.schedules import ScheduleKind

SCHEDULE = ScheduleKind(factor=lambda progress, shape: 1.0)
