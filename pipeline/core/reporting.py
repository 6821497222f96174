"""What a stage tells of itself while it is made: progress and metrics, to whoever listens; and whether it is to stop."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any


class Reporter:
    """Takes what a stage tells of itself while it is made; this one drops it. Called often, so it must be quick."""

    def begin(self, build_id: str) -> None:
        """The directory is ours and building starts; never called for an artifact that is there already."""

    def progress(self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]) -> None:
        """How far the stage has come; `total` is None where nobody knows."""

    def metrics(self, values: Mapping[str, Any]) -> None:
        """One logged line: `step`, `time` (Unix seconds, when the line was made), and numbers by name."""

    def checkpoint(self, step: int, path: str) -> None:
        """A checkpoint that stays is complete: a milestone of the training, at the absolute `path`."""

    def records(self, values: Sequence[Mapping[str, Any]]) -> None:
        """What a verb answers, as JSON objects, in order; not to be lost."""

    def processes(self, ids: Mapping[int, int]) -> None:
        """The stage runs in these processes of this machine, by rank; empty: it has ended."""

    def grace(self, seconds: float) -> None:
        """So long the stage may take to end once it is asked to; told again when it changes."""

    def stop_asked(self) -> bool:
        """Whether the stage is to end, with a checkpoint if it is a training; asked about twice a second while processes run."""
        return False


log = logging.getLogger(__name__)

SILENT = Reporter()


class GuardedReporter(Reporter):
    """Passes reports on. A fault in one is told once a kind and never reaches the stage, which is worth more than its records."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._told: set[str] = set()

    def begin(self, build_id: str) -> None:
        self._pass_on("begin", build_id)

    def progress(self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]) -> None:
        self._pass_on("progress", done, total, unit, figures)

    def metrics(self, values: Mapping[str, Any]) -> None:
        self._pass_on("metrics", values)

    def checkpoint(self, step: int, path: str) -> None:
        self._pass_on("checkpoint", step, path)

    def records(self, values: Sequence[Mapping[str, Any]]) -> None:
        self._reporter.records(values)

    def processes(self, ids: Mapping[int, int]) -> None:
        self._pass_on("processes", ids)

    def grace(self, seconds: float) -> None:
        self._pass_on("grace", seconds)

    def stop_asked(self) -> bool:
        return self._reporter.stop_asked()

    def _pass_on(self, kind: str, *values: Any) -> None:
        try:
            getattr(self._reporter, kind)(*values)
        except Exception as error:
            if kind not in self._told:
                self._told.add(kind)
                log.warning("reporting (%s) failed, the stage goes on: %s: %s", kind, type(error).__name__, error)
