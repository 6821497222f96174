"""The table of learning-rate schedules: pure functions of how far a training is, so that resuming needs no state. No torch here.

A schedule is a file with a `ScheduleKind`, and a line here. How far a training is may be counted in steps, in tokens or in seconds
(`model.train.pace`): a schedule sees shares alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.core.registry import load

SCHEDULES: dict[str, str] = {
    "linear": "model.train.schedules.linear:SCHEDULE",
    "constant": "model.train.schedules.constant:SCHEDULE",
    "cosine": "model.train.schedules.cosine:SCHEDULE",
    "polynomial": "model.train.schedules.polynomial:SCHEDULE",
    "inverse-sqrt": "model.train.schedules.inverse_sqrt:SCHEDULE",
    "sqrt": "model.train.schedules.sqrt:SCHEDULE",
    "wsd": "model.train.schedules.wsd:SCHEDULE",
    "one-cycle": "model.train.schedules.one_cycle:SCHEDULE",
}


def schedule_help() -> str:
    """The help text of a config's field."""
    return f"How the learning rate falls after the warm-up: {', '.join(SCHEDULES)}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a schedule may look at beside the progress.

    Attributes:
        warmup: the share of the schedule that its linear rise takes, in [0, 1].
        decay: the share that the fall at its end takes, in (0, 1], where it has one of its own.
        power: the exponent of a polynomial.
    """

    warmup: float = 0.0
    decay: float = 0.2
    power: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleKind:
    """What a file of this package holds.

    Attributes:
        factor: the share of what follows the warm-up that is done, in [0, 1), and the shape, to what the peak is multiplied with.
        options: the names of `Shape` that it reads, beside the warm-up's.
        rises: whether it begins with the linear rise; else it brings its own, and the warm-up is its.
        needs_warmup: whether it means nothing without one.
    """

    factor: Callable[[float, Shape], float]
    options: frozenset[str] = frozenset()
    rises: bool = True
    needs_warmup: bool = False


def schedule_kind(name: str) -> ScheduleKind:
    """The row of that name, imported."""
    found: ScheduleKind = load(SCHEDULES[name])
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A learning rate's course.

    Attributes:
        name: in `SCHEDULES`.
        warmup: of the linear rise, in the unit that the training is counted in.
        decay, power: see `Shape`.
        final: the share of the peak that it falls to, instead of 0.
    """

    name: str = "linear"
    warmup: float = 0.0
    decay: float = 0.2
    power: float = 1.0
    final: float = 0.0

    def factor(self, done: float, whole: float, size: float = 1) -> float:
        """What the peak is multiplied with in a step.

        Args:
            done: what the schedule has behind it, in any unit.
            whole: what it has in all.
            size: what this step adds: the rise counts it as done, so that no step has a rate of 0.
        """
        kind = schedule_kind(self.name)
        if kind.rises and done < self.warmup:
            return min(1.0, (done + size) / self.warmup)
        warmup = self.warmup if kind.rises else 0.0
        progress = (done - warmup) / max(size, whole - warmup)
        shape = Shape(warmup=self.warmup / max(size, whole), decay=self.decay, power=self.power)
        found = kind.factor(min(progress, 1.0), shape)
        return found if not self.final else self.final + (1.0 - self.final) * found
