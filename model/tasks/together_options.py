"""What may be said about several tasks that are trained at once. No torch."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from model.tasks.options import TaskOptions
from pipeline.core.config import InputPath, StageConfig

TOGETHER = "together"  # the task that is made of others


class Part(StageConfig):
    """One of several tasks that are trained at once."""

    task: str | None = None
    """A row of the table of tasks; by default that of the part's own name."""

    data: InputPath | None = None
    """Directory of its files; by default that of all parts."""

    options: dict[str, Any] = Field(default_factory=dict)
    """What is not as the table of tasks says."""


class TogetherOptions(TaskOptions):
    """Of several tasks at once."""

    tasks: dict[str, Part] = Field(default_factory=dict)
    """By name: the tasks that share the encoder."""
