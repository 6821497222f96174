"""The table of tasks: one row and one module each.

A task's module holds an object `TASK`, an instance of its kind (`model.tasks.classification.Classification` …), which says all that
is special to it; see `model.tasks.task`. This module imports no torch: the command line reads it at every start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.core.errors import UsageError, did_you_mean
from pipeline.core.registry import load

if TYPE_CHECKING:
    from model.tasks.task import Task

TASKS: dict[str, str] = {
    "sst2": "model.tasks.sst2:TASK",
    "package": "model.tasks.package:TASK",
}


def load_task(name: str) -> Task[Any, Any]:
    """The task of that name.

    Raises:
        UsageError: there is none; the nearest name is told.
    """
    if name not in TASKS:
        raise UsageError(f"unknown task {name!r}; {did_you_mean(name, TASKS)}")
    found: Task[Any, Any] = load(TASKS[name])
    return found
