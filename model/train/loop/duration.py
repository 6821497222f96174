"""The duration of a training: in steps, in real tokens, or in seconds.

Learning rate, evaluations and log lines follow from a step's `ScheduleProgress`, which all ranks
know before the step runs. With a time budget rank 0 measures the first steps and fixes the number
of steps once. `TrainerState.budget` stores it, and training then counts steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import psutil

from cloze.core.errors import UsageError

# Schedule length of a time budget: the number of steps is unknown at the start.
WHOLE = 1_000_000_000
UNMEASURED = WHOLE // 1000  # size of a step before the number of steps is fixed
FEWEST, MOST = 10, 50  # limits on the number of measured steps
MEASURING = 0.05  # share of the budget spent on measuring, between these limits
OVERHEAD = 1.05  # factor on the measured steps for evaluations and checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleProgress:
    """The position of a step in the schedule.

    Attributes:
        done: amount done before the step, in the duration's unit.
        step_size: amount of the step.
        total: length of the learning-rate schedule, which several phases may share.
        last: True for the last step of this training.
    """

    done: float
    step_size: float
    total: float
    last: bool

    @property
    def fraction(self) -> float:
        """Share of the schedule done after this step, in (0, 1]."""
        return min(1.0, max(1e-9, (self.done + self.step_size) / self.total))

    def crosses(self, parts: int) -> bool:
        """Return True if the step completes one of `parts` equal parts of the schedule."""
        return int((self.done + self.step_size) * parts / self.total) > int(
            self.done * parts / self.total
        )


class Duration(Protocol):
    """The unit and the end of a training."""

    @property
    def steps(self) -> int | None:
        """Number of the last step, from 1 over all phases; None if the config does not fix it."""
        ...

    @property
    def total(self) -> float:
        """Length of the learning-rate schedule, in the duration's unit."""
        ...

    def fix(self, step: int) -> int:
        """Return the number of the last step once rank 0 has fixed it by its clock; 0: not yet.

        Called on rank 0 once before each step (from 0), in order.
        """
        ...

    def last(self, step: int, tokens: int, budget: Sequence[int]) -> int | None:
        """Return the number of the last step once it is known after `step` steps; else None.

        Args:
            tokens: real tokens trained on so far, over all phases.
            budget: see `TrainerState.budget`.
        """
        ...

    def progress_at(
        self, step: int, tokens: int, size: int, budget: Sequence[int]
    ) -> ScheduleProgress:
        """Return the schedule progress of step `step` (from 0).

        Args:
            tokens: real tokens trained on before, over all phases.
            size: real tokens of this step.
            budget: see `TrainerState.budget`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDuration:
    """A duration in steps.

    Attributes:
        steps: number of the last step.
        first: first step (from 0) of the learning-rate schedule.
        span: length of the learning-rate schedule in steps.
    """

    steps: int
    first: int = 0
    span: int

    @property
    def total(self) -> float:
        return self.span

    def fix(self, step: int) -> int:
        return 0

    def last(self, step: int, tokens: int = 0, budget: Sequence[int] = ()) -> int:
        return self.steps

    def progress_at(
        self, step: int, tokens: int = 0, size: int = 0, budget: Sequence[int] = ()
    ) -> ScheduleProgress:
        return ScheduleProgress(
            done=step - self.first, step_size=1, total=self.span, last=step + 1 == self.steps
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDuration:
    """A duration in real tokens: the step that reaches the number is the last.

    Attributes:
        first: tokens before this phase.
        tokens: tokens of this phase.
    """

    first: int
    tokens: int
    steps: None = None

    @property
    def total(self) -> float:
        return self.tokens

    def fix(self, step: int) -> int:
        return 0

    def last(self, step: int, tokens: int, budget: Sequence[int] = ()) -> int | None:
        return step if tokens - self.first >= self.tokens else None

    def progress_at(
        self, step: int, tokens: int, size: int, budget: Sequence[int] = ()
    ) -> ScheduleProgress:
        done = tokens - self.first
        return ScheduleProgress(
            done=done, step_size=max(1, size), total=self.tokens, last=done + size >= self.tokens
        )


@dataclass(slots=True, kw_only=True)
class TimeBudget:
    """A duration in seconds, from the start of rank 0's process to the end of the command.

    The schedule starts when the number of steps is fixed. Loading, building and compiling come
    before, and would otherwise use up the warm-up of a short training.

    Attributes:
        seconds: the budget.
        cold: calls of `fix` before measuring. The first step allocates and compiles; with several
            ranks `fix` is called one step ahead.
        closing: maps the seconds of a step to the seconds needed after the last step (evaluation,
            saving).
        clock: returns the seconds since the process started.
    """

    seconds: float
    cold: int
    closing: Callable[[float], float]
    clock: Callable[[], float] = field(default_factory=lambda: process_clock())
    steps: None = None
    total: float = WHOLE
    _times: list[float] = field(default_factory=list)
    _last: int = 0

    def check_feasible(self) -> int:
        """Return 0, or reject a budget that is over before the first step.

        Raises:
            UsageError: the budget is over.
        """
        now = self.clock()
        if now >= self.seconds:
            raise UsageError(
                f"max_time ({self.seconds:g}s) was over before the first step: starting took "
                f"{now:.1f} s;"
                f" use {math.ceil(3 * now)}s or more"
            )
        return 0

    def fix(self, step: int) -> int:
        if self._last:
            return self._last
        now = self.clock()
        self._times.append(now)
        warm_times = self._times[self.cold :]
        if len(warm_times) < 2:
            self._last = step + 1 if now >= self.seconds - self.closing(0.0) else 0
            return self._last
        measured_steps, elapsed = len(warm_times) - 1, now - warm_times[0]
        step_seconds = elapsed / measured_steps
        remaining = self.seconds - self.closing(step_seconds) - now
        enough = measured_steps >= MOST or (
            measured_steps >= FEWEST and elapsed >= MEASURING * self.seconds
        )
        if enough or remaining < FEWEST * step_seconds:
            queued_steps = self.cold - 1  # steps that still run before this one
            self._last = step + max(1, int(remaining / (OVERHEAD * step_seconds)) - queued_steps)
        return self._last

    def last(self, step: int, tokens: int = 0, budget: Sequence[int] = ()) -> int | None:
        return budget[1] if budget else None

    def progress_at(
        self, step: int, tokens: int = 0, size: int = 0, budget: Sequence[int] = ()
    ) -> ScheduleProgress:
        if not budget:
            return ScheduleProgress(done=0, step_size=UNMEASURED, total=WHOLE, last=False)
        first, last = budget
        step_size = WHOLE / max(1, last - first)
        return ScheduleProgress(
            done=(step - first) * step_size, step_size=step_size, total=WHOLE, last=step + 1 == last
        )


def process_clock() -> Callable[[], float]:
    """Return a monotonic clock of the seconds since this process started."""
    start = time.monotonic() - max(0.0, time.time() - psutil.Process().create_time())
    return lambda: time.monotonic() - start
