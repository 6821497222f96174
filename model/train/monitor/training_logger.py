"""Reporting of a training: log lines, messages, warnings and checkpoints."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cloze.core import storage
from cloze.core.artifacts import checkpoints
from cloze.core.stages.stage import Reporter
from cloze.model.train.distributed import World
from cloze.model.train.loop.train_spec import TrainSpec
from cloze.model.train.monitor.metrics import METRICS, SKIPPED, JsonlLog
from cloze.model.train.resume import state

REPORT_SECONDS = 1.0
FIRST_LOSS_TOLERANCE = 0.1  # of the expected first loss

log = logging.getLogger(__name__)


class TrainingReporter:
    """Log lines and reports of one rank; only rank 0 writes and reports.

    Args:
        where: returns the newest step, and the last step or None.
    """

    def __init__(
        self,
        training: TrainSpec,
        world: World,
        report: Reporter,
        where: Callable[[], tuple[int, int | None]],
    ) -> None:
        self._training, self._first, self._report, self._where = (
            training,
            world.is_rank_zero,
            report,
            where,
        )
        self.metrics = JsonlLog(storage.join(training.path, METRICS), world)
        self.skipped_steps = JsonlLog(storage.join(training.path, SKIPPED), world)
        self._reported_at = 0.0  # time of the last progress report

    def resume(self, step: int, pending: bool) -> int:
        """Drop the lines after `step` and an unfinished one; return their number.

        The other lines are reported again.
        """
        dropped = self.metrics.truncate(step - pending)
        self.skipped_steps.truncate(step)
        if self._first:
            for record in self.metrics.read():  # a kill may have come between a line and its report
                self._report.metrics(record)
                self._alarms(record)
            # A kill may also have come between a checkpoint and its report.
            for path in state.milestone_checkpoints(
                self._training.path, self._training.checkpoints.milestones
            ).values():
                self._report.checkpoint(
                    checkpoints.parse_step(path), storage.join(self._training.path, path)
                )
        return dropped

    def report_progress(self, figures: Mapping[str, Any]) -> None:
        """Report the progress, with additional metrics or messages."""
        if self._first:
            self._reported_at = time.monotonic()
            self._report.progress(*self._where(), "steps", figures)

    def report_progress_throttled(self) -> None:
        """Report the progress unless it was reported within the last second."""
        if time.monotonic() - self._reported_at > REPORT_SECONDS:
            self.report_progress({})

    def message(self, note: str, kind: str = "note") -> None:
        log.warning("%s", note)
        self.report_progress({kind: note})

    def log(self, line: Mapping[str, Any]) -> None:
        """Write and report a log line, with its warnings."""
        self.metrics.add(line)
        if self._first:
            self._report.metrics(line)
            for sentence in self._alarms(line):
                self.message(sentence, "warning")
        self.report_progress(
            {name: value for name, value in line.items() if name not in ("step", "time")}
        )

    def checkpoint(self, step: int) -> None:
        """Report that the checkpoint of `step` is complete, if it is a milestone."""
        if self._first and step in self._training.checkpoints.milestones:
            self._report.checkpoint(
                step,
                storage.join(self._training.path, checkpoints.STEPS, checkpoints.step_name(step)),
            )

    def first_loss(self, loss: float | None) -> None:
        """Warn if the first loss is not that of untrained weights."""
        expected = self._training.logging.expected_first_loss
        if (
            loss is not None
            and expected is not None
            and abs(loss - expected) > FIRST_LOSS_TOLERANCE * expected
        ):
            self.message(
                f"THE FIRST LOSS IS {loss:.3f}, untrained weights should give {expected:.3f} (ln V,"
                f" and ln 2 for pairs):"
                " check vocabulary, masks and initializer_range",
                "warning",
            )

    def sync(self) -> None:
        """Flush the log files to disk."""
        for file in (self.metrics, self.skipped_steps):
            file.sync()

    def _alarms(self, line: Mapping[str, Any]) -> Sequence[str]:
        """Return the warnings for a log line, including lines of earlier sessions."""
        return (
            ()
            if self._training.logging.check_line is None
            else self._training.logging.check_line(line)
        )
