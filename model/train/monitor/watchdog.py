"""Time limits of steps, and the time that a shutdown takes.

`cloze.core.processes` carries the limits to the parent process; `cloze.flows.launch.hang_detection`
acts on them.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

from torch import nn

from cloze.core.processes import RankPhase
from cloze.core.stages.stage import Reporter
from cloze.model.train.distributed import World
from cloze.model.train.throughput import Part

T = TypeVar("T")

TIMES = 10.0  # times the median of the recent steps
RECENT = 50
FIRST = 3  # steps that allocate, compile and open files
# At least, for a phase of unknown duration: of a first step, a batch of an evaluation, a save.
LONG_SECONDS = 3600.0
# Factor on the floor for compiled steps: a new batch shape may trigger compilation.
COMPILED = 10.0


class StepTimer:
    """The time limit of each of a rank's steps, and what the clock counts around them.

    Args:
        floor: seconds that any step may take; 0: no limits.
        compiled: True if steps are compiled.
    """

    def __init__(self, world: World, floor: float, compiled: bool) -> None:
        self._pulse, self._timeline = world.pulse, world.timeline
        self._floor = floor * (COMPILED if compiled else 1.0)
        self._longest_pause = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._seen = self._step = 0
        self._began: float | None = None

    def begin(self, step: int) -> None:
        """Mark the start of step `step` (from 1), and the end of the previous one."""
        now = time.monotonic()
        if self._began is not None:
            self._seen += 1
            if self._seen > FIRST:
                self._recent.append(now - self._began)
        self._began, self._step = now, step
        self._pulse.begin_step(step, self.limit, self._long_limit(self._longest_pause))

    def end(self) -> None:
        """Mark the end of the last step; what follows is of unknown duration."""
        self._began = None
        limit = self._long_limit(self._longest_pause)
        self._pulse.begin_step(self._step, limit, limit)

    @property
    def median_step_seconds(self) -> float:
        """Median duration of recent steps in seconds; 0: unknown."""
        return statistics.median(self._recent) if self._recent else 0.0

    @property
    def limit(self) -> float:
        """Limit of a phase of a step in seconds; 0: no limit."""
        if not self._recent:
            return self._long_limit(0.0)
        return max(self._floor, TIMES * self.median_step_seconds) if self._floor else 0.0

    def _long_limit(self, longest: float) -> float:
        return max(LONG_SECONDS, self._floor, TIMES * longest) if self._floor else 0.0

    @contextlib.contextmanager
    def exclude(self, section: Part) -> Iterator[None]:
        """Exclude the block, an evaluation or a save, from the step's duration and time limit."""
        start = time.monotonic()
        try:
            with self._pulse.phase(RankPhase.EVALUATING_OR_SAVING), self._timeline.section(section):
                yield
        finally:
            seconds = time.monotonic() - start
            self._longest_pause = max(self._longest_pause, seconds)
            # The step begins later by as much, so that the median stays that of steps.
            if self._began is not None:
                self._began += seconds

    def wait_for(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items; the time spent waiting for them counts as waiting for data."""
        iterator = iter(items)
        while True:
            with self._pulse.phase(RankPhase.DATA), self._timeline.section("data"):
                item = next(iterator, None)
            if item is None:
                return
            yield item


STATE_BYTES = 12  # per parameter: weight and Adam's two moments, in fp32
# Bytes per second including hashing, on a slow disk or a machine with a load of ten times its
# cores.
DISK_SPEED = 4e7
BEGIN_SECONDS = 10.0  # to end an evaluation, and the process
STEPS = 3.0  # steps that may run before a stop takes effect
SAVES = 4.0  # saves: the last, and one that is being written; either may take twice as long


class ShutdownTimeEstimator:
    """Calls `Reporter.shutdown_time` when the estimated time for a stop with a save grows."""

    def __init__(self, report: Reporter, model: nn.Module, world: World) -> None:
        size = sum(int(getattr(value, "ds_numel", value.numel())) for value in model.parameters())
        self._report = report if world.is_rank_zero else None
        self._save = STATE_BYTES * size / DISK_SPEED
        self._step = self._reported = 0.0
        self._report_time()

    def observe_save(self, seconds: float) -> None:
        """Record the duration of a checkpoint."""
        self._save = max(self._save, SAVES * seconds)
        self._report_time()

    def observe_step(self, seconds: float) -> None:
        """Record the duration of steps."""
        self._step = seconds
        self._report_time()

    @property
    def seconds(self) -> float:
        return BEGIN_SECONDS + self._save + STEPS * self._step

    def _report_time(self) -> None:
        if self._report is not None and self.seconds > 1.1 * self._reported:
            self._reported = round(self.seconds, 1)
            self._report.shutdown_time(self._reported)
