"""Schedules of learning rate and batch size: pure functions, so resuming needs no state. No torch.

A learning-rate schedule is a function and an entry in `SCHEDULES`. It only sees shares of the
training: progress may be counted in steps, tokens or seconds (`cloze.model.train.loop.duration`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

ONE_CYCLE_RISE, ONE_CYCLE_START = 0.3, 1 / 25  # as `torch.optim.lr_scheduler.OneCycleLR`


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Parameters of a schedule's curve.

    Attributes:
        warmup: share of the schedule used by the linear warm-up, in [0, 1].
        decay: share used by the final decay, in (0, 1], if the schedule has one.
    """

    warmup: float = 0.0
    decay: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleKind:
    """A learning-rate schedule.

    Attributes:
        factor: (share done after the warm-up, in [0, 1); the shape) -> multiplier on the peak.
        reads_decay: True if it reads `Shape.decay`.
        rises: True if a linear warm-up precedes it; False: its own rise takes `warmup`.
        needs_warmup: True if it is undefined without a warm-up.
    """

    factor: Callable[[float, Shape], float]
    reads_decay: bool = False
    rises: bool = True
    needs_warmup: bool = False


def linear(progress: float, shape: Shape) -> float:
    """Decay linearly to 0 (google-research/bert, optimization.py)."""
    return 1.0 - progress


def constant(progress: float, shape: Shape) -> float:
    """Keep the peak to the end."""
    return 1.0


def cosine(progress: float, shape: Shape) -> float:
    """Decay to 0 along half a cosine (Loshchilov and Hutter, "SGDR", 2017, equation 5)."""
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def inverse_sqrt(progress: float, shape: Shape) -> float:
    """Decay with one over the square root of the progress since the start, never to 0.

    At twice the warm-up the rate is the peak over the square root of two (Vaswani et al., 2017,
    section 5.3; fairseq's `inverse_sqrt`).
    """
    return math.sqrt(shape.warmup / (shape.warmup + progress * (1.0 - shape.warmup)))


def sqrt(progress: float, shape: Shape) -> float:
    """Decay as one minus the square root of the progress: the decay of `wsd` as a phase of its own.

    Hägele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations",
    2024, section 3.
    """
    return 1.0 - math.sqrt(progress)


def wsd(progress: float, shape: Shape) -> float:
    """Keep the peak, then decay like `sqrt` over the last `decay` (Hägele et al., 2024)."""
    # Share of the whole schedule, like the decay.
    overall_progress = shape.warmup + progress * (1.0 - shape.warmup)
    decay_progress = 1.0 - (1.0 - overall_progress) / min(shape.decay, 1.0 - shape.warmup)
    return 1.0 if decay_progress <= 0.0 else 1.0 - math.sqrt(min(decay_progress, 1.0))


def one_cycle(progress: float, shape: Shape) -> float:
    """Rise along half a cosine to the peak, then decay along half a cosine to 0.

    Smith and Topin, "Super-Convergence", 2018. As in torch, the rise starts at a 25th of the peak,
    and takes three tenths of the schedule if no warm-up is set.
    """
    rise = shape.warmup or ONE_CYCLE_RISE
    if progress < rise:
        rise_factor = 0.5 * (1.0 - math.cos(math.pi * progress / rise))
        return ONE_CYCLE_START + (1.0 - ONE_CYCLE_START) * rise_factor
    return 0.5 * (1.0 + math.cos(math.pi * (progress - rise) / max(1e-9, 1.0 - rise)))


SCHEDULES: dict[str, ScheduleKind] = {
    "linear": ScheduleKind(factor=linear),
    "constant": ScheduleKind(factor=constant),
    "cosine": ScheduleKind(factor=cosine),
    "inverse-sqrt": ScheduleKind(factor=inverse_sqrt, needs_warmup=True),
    "sqrt": ScheduleKind(factor=sqrt),
    "wsd": ScheduleKind(factor=wsd, reads_decay=True),
    "one-cycle": ScheduleKind(factor=one_cycle, rises=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A learning-rate schedule with its parameters.

    Attributes:
        name: key of `SCHEDULES`.
        warmup: length of the linear warm-up, in the unit of the training's progress.
        decay: see `Shape`.
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
        kind = SCHEDULES[self.name]
        if kind.rises and done < self.warmup:
            return min(1.0, (done + size) / self.warmup)
        warmup = self.warmup if kind.rises else 0.0
        progress = (done - warmup) / max(size, whole - warmup)
        shape = Shape(warmup=self.warmup / max(size, whole), decay=self.decay)
        factor = kind.factor(min(progress, 1.0), shape)
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
