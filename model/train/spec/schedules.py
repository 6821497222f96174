"""Schedules of learning rate and batch size, and the duration of a training. No torch.

A learning-rate schedule is a function and an entry in `SCHEDULES`. It only sees shares of the
training, which may be counted in steps, real tokens or seconds. Learning rate, evaluations and log
lines follow from a step's `ScheduleProgress`, which all ranks know before the step runs. With a
time budget rank 0 measures the first steps and fixes the number of steps once.
`TrainerState.budget` stores it, and training then counts steps.
"""

from __future__ import annotations

import abc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from cloze.core.errors import UsageError

# Schedule length of a time budget: the number of steps is unknown at the start.
BUDGET_UNITS = 1_000_000_000
UNMEASURED = BUDGET_UNITS // 1000  # size of a step before the number of steps is fixed
FEWEST, LONG, ENOUGH = 10, 0.05, 50  # measured steps, if they take this share of the budget; else
MEASURING, MEASURING_SECONDS = 0.01, 30.0  # share of the budget spent on measuring; at most
OVERHEAD = 1.05  # factor on the measured steps for evaluations and checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleKind:
    """A learning-rate schedule.

    Attributes:
        factor: (share done after the warm-up, in [0, 1); the schedule, with its warm-up as a share
            of the whole) -> multiplier on the peak.
        reads_decay: True if it reads `Schedule.decay`.
        needs_warmup: True if it is undefined without a warm-up.
    """

    factor: Callable[[float, Schedule], float]
    reads_decay: bool = False
    needs_warmup: bool = False


def linear(progress: float, curve: Schedule) -> float:
    """Decay linearly to 0 (transformers' `get_linear_schedule_with_warmup`)."""
    return 1.0 - progress


def constant(progress: float, curve: Schedule) -> float:
    """Keep the peak to the end."""
    return 1.0


def cosine(progress: float, curve: Schedule) -> float:
    """Decay to 0 along half a cosine (Loshchilov and Hutter, "SGDR", 2017, equation 5)."""
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def inverse_sqrt(progress: float, curve: Schedule) -> float:
    """Decay with one over the square root of the progress since the start, never to 0.

    At twice the warm-up the rate is the peak over the square root of two (Vaswani et al., 2017,
    section 5.3; fairseq's `inverse_sqrt`).
    """
    return math.sqrt(curve.warmup / (curve.warmup + progress * (1.0 - curve.warmup)))


def sqrt(progress: float, curve: Schedule) -> float:
    """Decay as one minus the square root of the progress: the decay of `wsd` as a phase of its own.

    Hägele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations",
    2024, section 3.
    """
    return 1.0 - math.sqrt(progress)


def wsd(progress: float, curve: Schedule) -> float:
    """Keep the peak, then decay like `sqrt` over the last `decay` (Hägele et al., 2024)."""
    # Share of the whole schedule, like the decay.
    overall_progress = curve.warmup + progress * (1.0 - curve.warmup)
    decay_progress = 1.0 - (1.0 - overall_progress) / min(curve.decay, 1.0 - curve.warmup)
    return 1.0 if decay_progress <= 0.0 else 1.0 - math.sqrt(min(decay_progress, 1.0))


SCHEDULES: dict[str, ScheduleKind] = {
    "linear": ScheduleKind(factor=linear),
    "constant": ScheduleKind(factor=constant),
    "cosine": ScheduleKind(factor=cosine),
    "inverse-sqrt": ScheduleKind(factor=inverse_sqrt, needs_warmup=True),
    "sqrt": ScheduleKind(factor=sqrt),
    "wsd": ScheduleKind(factor=wsd, reads_decay=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A learning-rate schedule with its parameters.

    Attributes:
        name: key of `SCHEDULES`.
        warmup: length of the linear warm-up, in the unit of the training's progress.
        decay: share used by the final decay, in (0, 1], if the schedule has one.
        final: share of the peak at the end. Default: 0.
    """

    name: str = "linear"
    warmup: float = 0.0
    decay: float = 0.2
    final: float = 0.0

    def factor(self, done: float, whole: float, size: float = 1) -> float:
        """Return the multiplier on the peak in a step.

        Args:
            done: progress before the step, in any unit.
            whole: length of the schedule.
            size: progress of this step. The warm-up counts it as done, so no step has a rate of 0.
        """
        if done < self.warmup:
            return min(1.0, (done + size) / self.warmup)
        # The warm-up may be all of it.
        progress = (done - self.warmup) / max(size, whole - self.warmup)
        curve = replace(self, warmup=self.warmup / max(size, whole))
        factor = SCHEDULES[self.name].factor(min(progress, 1.0), curve)
        return factor if not self.final else self.final + (1.0 - self.final) * factor


@dataclass(frozen=True, slots=True)
class BatchSizeSchedule:
    """A batch size that is constant or grows.

    Devlin et al., 2019, keep it constant; You et al., 2019, and Brown et al., 2020, let it grow.

    Attributes:
        last: final samples per step.
        first: samples of the first step, a divisor of `last`; 0: constant `last`.
        steps: steps over which the batch grows, in `last / first` equal levels.
    """

    last: int
    first: int = 0
    steps: int = 0

    def size(self, step: int) -> int:
        """Return the samples of step `step`, from 0."""
        return self.samples_before(step + 1) - self.samples_before(step)

    def samples_before(self, step: int) -> int:
        """Return the samples of all steps before step `step`, from 0."""
        growing_steps, samples = min(step, self.steps), max(0, step - self.steps) * self.last
        levels = self.last // self.first if self.first else 0
        for level in range(levels):
            level_start, level_end = (
                -(-boundary * self.steps // levels) for boundary in (level, level + 1)
            )
            if level_start >= growing_steps:
                break
            samples += (level + 1) * self.first * (min(level_end, growing_steps) - level_start)
        return samples


ROUNDING = 1e-9  # a share of a part: sums of step sizes are not exact


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleProgress:
    """How far a step is in the schedule.

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

        def completed(done: float) -> int:
            return int(done * parts / self.total + ROUNDING)

        return completed(self.done + self.step_size) > completed(self.done)


class Duration(abc.ABC):
    """The unit and the end of a training.

    Attributes:
        steps: number of the last step, from 1 over all phases; None if the config does not fix it.
        total: length of the learning-rate schedule, in the duration's unit.
    """

    steps: int | None
    total: float

    def fix(self, step: int) -> int:
        """Return the number of the last step once rank 0 has fixed it by its clock; 0: not yet.

        Called on rank 0 once before each step (from 0), in order.
        """
        return 0

    @abc.abstractmethod
    def last(self, step: int, tokens: int = 0, budget: Sequence[int] = ()) -> int | None:
        """Return the number of the last step once it is known after `step` steps; else None.

        Args:
            tokens: real tokens trained on so far, over all phases.
            budget: see `TrainerState.budget`.
        """

    @abc.abstractmethod
    def progress_at(
        self, step: int, tokens: int = 0, size: int = 0, budget: Sequence[int] = ()
    ) -> ScheduleProgress:
        """Return the schedule progress of step `step` (from 0).

        Args:
            tokens: real tokens trained on before, over all phases.
            size: real tokens of this step.
            budget: see `TrainerState.budget`.
        """


class StepDuration(Duration):
    """A duration in steps.

    Args:
        steps: number of the last step.
        span: length of the learning-rate schedule in steps.
        first: first step (from 0) of the learning-rate schedule.
    """

    total: int

    def __init__(self, *, steps: int, span: int, first: int = 0) -> None:
        self.steps, self.total, self.first = steps, span, first

    def last(self, step: int, tokens: int = 0, budget: Sequence[int] = ()) -> int | None:
        return self.steps

    def progress_at(
        self, step: int, tokens: int = 0, size: int = 0, budget: Sequence[int] = ()
    ) -> ScheduleProgress:
        return ScheduleProgress(
            done=step - self.first, step_size=1, total=self.total, last=step + 1 == self.steps
        )


class TokenDuration(Duration):
    """A duration in real tokens: the step that reaches the number is the last.

    Args:
        first: tokens before this phase.
        tokens: tokens of this phase.
    """

    steps = None

    def __init__(self, *, first: int, tokens: int) -> None:
        self.first, self.total = first, tokens

    def last(self, step: int, tokens: int = 0, budget: Sequence[int] = ()) -> int | None:
        return step if tokens - self.first >= self.total else None

    def progress_at(
        self, step: int, tokens: int = 0, size: int = 0, budget: Sequence[int] = ()
    ) -> ScheduleProgress:
        done = tokens - self.first
        return ScheduleProgress(
            done=done, step_size=max(1, size), total=self.total, last=done + size >= self.total
        )


@dataclass(slots=True, kw_only=True)
class TimeBudget(Duration):
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
    total: float = BUDGET_UNITS
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
                f"{now:.1f} s; use {math.ceil(3 * now)}s or more"
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
        measured_steps = len(warm_times) - 1
        half = measured_steps // 2  # the first steps are slower
        step_seconds = (now - warm_times[half]) / (measured_steps - half)
        remaining = self.seconds - self.closing(step_seconds) - now
        elapsed = now - warm_times[0]
        fewest = FEWEST if elapsed >= LONG * self.seconds else ENOUGH
        measuring = min(MEASURING * self.seconds, MEASURING_SECONDS)
        is_measured = measured_steps >= fewest and elapsed >= measuring
        if is_measured or remaining < FEWEST * step_seconds:
            queued_steps = self.cold - 1  # steps that still run before this one
            self._last = step + max(1, int(remaining / (OVERHEAD * step_seconds)) - queued_steps)
        return self._last

    def last(self, step: int, tokens: int = 0, budget: Sequence[int] = ()) -> int | None:
        return budget[1] if budget else None

    def progress_at(
        self, step: int, tokens: int = 0, size: int = 0, budget: Sequence[int] = ()
    ) -> ScheduleProgress:
        if not budget:
            return ScheduleProgress(done=0, step_size=UNMEASURED, total=BUDGET_UNITS, last=False)
        first, last = budget
        step_size = BUDGET_UNITS / max(1, last - first)
        return ScheduleProgress(
            done=(step - first) * step_size,
            step_size=step_size,
            total=BUDGET_UNITS,
            last=step + 1 == last,
        )


def process_clock() -> Callable[[], float]:
    """Return a monotonic clock of the seconds since this process started."""
    import psutil

    start = time.monotonic() - max(0.0, time.time() - psutil.Process().create_time())
    return lambda: time.monotonic() - start
