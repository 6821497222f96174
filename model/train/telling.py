"""What a training says while it runs: its log lines, in their files and to whoever watches; notes, alarms, checkpoints."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from model.train import state
from model.train.distributed import World
from model.train.interfaces import Training
from model.train.metrics import METRICS, SKIPPED, Lines
from pipeline.core import checkpoints, storage
from pipeline.core.reporting import Reporter

REPORT_SECONDS = 1.0
FIRST_LOSS_TOLERANCE = 0.1  # of the expected first loss

log = logging.getLogger(__name__)


class Telling:
    """The files' lines and the reports of one rank; only the first writes and reports.

    Args:
        where: the number of the newest step, and of the last one if it is known.
    """

    def __init__(self, training: Training, world: World, report: Reporter, where: Callable[[], tuple[int, int | None]]) -> None:
        self._training, self._first, self._report, self._where = training, world.first, report, where
        self.metrics = Lines(storage.join(training.path, METRICS), world)
        self.skips = Lines(storage.join(training.path, SKIPPED), world)
        self._told = 0.0  # when it last said how far it is

    def resume(self, step: int, pending: bool) -> int:
        """Drop the lines after `step`, and those of an unfinished one; say the others again. Returns how many were dropped."""
        dropped = self.metrics.cut(step - pending)
        self.skips.cut(step)
        if self._first:
            for line in self.metrics.read():  # a kill may have come between a line and its record
                self._report.metrics(line)
                self._alarms(line)
            for path in state.kept(self._training.path, self._training.milestones).values():  # likewise
                self._report.checkpoint(checkpoints.step_of(path), storage.join(self._training.path, path))
        return dropped

    def figures(self, figures: Mapping[str, Any]) -> None:
        """Say how far it is, and what else."""
        if self._first:
            self._told = time.monotonic()
            self._report.progress(*self._where(), "steps", figures)

    def still_there(self) -> None:
        """Say how far it is, unless that was said a moment ago."""
        if time.monotonic() - self._told > REPORT_SECONDS:
            self.figures({})

    def note(self, note: str, kind: str = "note") -> None:
        log.warning("%s", note)
        self.figures({kind: note})

    def line(self, line: Mapping[str, Any]) -> None:
        """A finished log line."""
        self.metrics.add(line)
        if self._first:
            self._report.metrics(line)
            for sentence in self._alarms(line):
                self.note(sentence, "warning")
        self.figures({name: value for name, value in line.items() if name not in ("step", "time")})

    def checkpoint(self, step: int) -> None:
        """The checkpoint of `step` is complete; those that stay are told."""
        if self._first and step in self._training.milestones:
            self._report.checkpoint(step, storage.join(self._training.path, checkpoints.STEPS, checkpoints.step_name(step)))

    def first_loss(self, loss: float | None) -> None:
        """Say loudly if it is not what untrained weights should give."""
        expected = self._training.expected_first_loss
        if loss is not None and expected is not None and abs(loss - expected) > FIRST_LOSS_TOLERANCE * expected:
            self.note(
                f"THE FIRST LOSS IS {loss:.3f}, untrained weights should give {expected:.3f} (ln V, and ln 2 for pairs):"
                " check vocabulary, masks and initializer_range",
                "warning",
            )

    def sync(self) -> None:
        """Have the lines so far on disk."""
        for file in (self.metrics, self.skips):
            file.sync()

    def _alarms(self, line: Mapping[str, Any]) -> Sequence[str]:
        """What is to be said of a log line; those of earlier sessions are shown to the alarms, too."""
        return () if self._training.alarms is None else self._training.alarms(line)
