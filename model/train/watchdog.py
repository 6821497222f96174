"""How long a step may take before this rank is held to hang; see `pipeline.core.pulse` for who looks, `flows.launchers.hanging` for what
follows.
"""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import statistics
import time
from collections import deque

from pipeline.core.pulse import Pulse

TIMES = 10.0  # the median of the recent steps
RECENT = 50
FIRST = 3  # steps that may take any time: they allocate, compile and open files
COMPILED = 10.0  # times the floor where steps are compiled: a batch of a new shape may be compiled in the midst


class Watchdog:
    """Sets the limit of each step.

    Args:
        pulse: this rank's.
        floor: seconds that any step may take; 0: nobody watches.
        compiled: whether steps are compiled.
    """

    def __init__(self, pulse: Pulse, floor: float, compiled: bool) -> None:
        self._pulse, self._floor = pulse, floor * (COMPILED if compiled else 1.0)
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._seen = self._step = 0
        self._began: float | None = None
        with contextlib.suppress(AttributeError, RuntimeError, ValueError):  # no such signal here, or no file to write to
            faulthandler.register(signal.SIGUSR1, all_threads=True)  # all stacks into the log, whatever the interpreter does

    def begin(self, step: int) -> None:
        """Step `step` (from 1) begins; the one before it has ended."""
        now = time.monotonic()
        if self._began is not None:
            self._seen += 1
            if self._seen > FIRST:
                self._recent.append(now - self._began)
        self._began, self._step = now, step
        self._pulse.step(step, self.limit)

    def end(self) -> None:
        """What comes now is no step, and may take any time."""
        self._began = None
        self._pulse.step(self._step, 0.0)

    def aside(self, seconds: float) -> None:
        """So many seconds since `begin` were no part of the step."""
        if self._began is not None:
            self._began += seconds

    @property
    def usual(self) -> float:
        """Seconds that a step takes; 0: not known yet."""
        return statistics.median(self._recent) if self._recent else 0.0

    @property
    def limit(self) -> float:
        """Seconds that a phase of a step may take; 0: any time."""
        if not self._floor or not self._recent:
            return 0.0
        return max(self._floor, TIMES * self.usual)
