"""Table of trackers: what takes a training's metrics beside MLflow. Its rows are of plug-ins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from cloze.core.plugins import Table


class Tracker(Protocol):
    """Receiver of one training's metrics."""

    def __init__(self, directory: Path, name: str) -> None:
        """Begin in `directory`, and replace what an earlier call has written there.

        `name`: the training's, for people, such as sample/pretrain.
        """

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step, in order of steps; `time` in seconds since 1970."""

    def flush(self) -> None:
        """Write what was taken, so that a reader sees it."""

    def close(self) -> None:
        """Write the rest, and end."""


TRACKERS: Table[type[Tracker]] = Table("trackers", "tracker", {})
