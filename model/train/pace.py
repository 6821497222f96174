"""How far a training is, and when it is over: counted in steps, in tokens, or in seconds.

A step's learning rate, evaluations and log lines follow from its moment, and that from numbers that all ranks know before it runs. Steps
and tokens are the same wherever it runs. Seconds are not: the first rank's clock says them, once for each step, and every saying is
written down (`pace.jsonl`), so that a training that was killed repeats its steps as they were and goes on from there.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import psutil

from model.train.distributed import World
from model.train.metrics import Lines
from pipeline.core import storage
from pipeline.core.errors import UsageError

WHOLE = 1_000_000_000  # a budget is counted in billionths: ranks add up whole numbers
PACE = "pace.jsonl"
RECENT = 15  # steps whose median is what a step takes
FIRST = WHOLE // 1000  # what the steps count before anybody knows what one takes

Told = tuple[int, int]  # what the first rank tells of a step: where it begins and where it will end


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A step's place in the course of its training.

    Attributes:
        done: what is done before it, in the pace's unit.
        size: what it adds.
        whole: what the course has in all: that of the learning rate, which several phases may share.
        last: whether it is the last step of this training.
    """

    done: float
    size: float
    whole: float
    last: bool

    @property
    def share(self) -> float:
        """What is done after it, in (0, 1]."""
        return min(1.0, max(1e-9, (self.done + self.size) / self.whole))

    def ends(self, parts: int) -> bool:
        """Whether it completes one of so many equal parts of the course."""
        return int((self.done + self.size) * parts / self.whole) > int(self.done * parts / self.whole)


class Pace(Protocol):
    """What a training is counted in."""

    @property
    def steps(self) -> int | None:
        """The number of the last step, counted from 1 over all phases, where that is known before it comes."""
        ...

    @property
    def whole(self) -> float:
        """What the course of the learning rate has in all, in the pace's unit."""
        ...

    def tell(self, step: int) -> Told:
        """What the first rank tells of step `step` (from 0), once for each step and in their order."""
        ...

    def moment(self, step: int, tokens: int, size: int, told: Told) -> Moment:
        """The moment of step `step` (from 0).

        Args:
            tokens: real tokens that were trained on before, over all phases.
            size: of this step.
            told: what the first rank told of it.
        """
        ...

    def over(self, step: int, tokens: int) -> bool:
        """Whether a training that has `step` steps and so many tokens behind it, over all phases, has ended. The first rank asks."""
        ...

    def check(self) -> int:
        """Refuse a length that cannot hold a step, when all is ready for the first. The first rank asks.

        Returns:
            0.

        Raises:
            UsageError: it cannot.
        """
        ...

    def sync(self) -> None:
        """Have what was told on disk before a checkpoint says that it was. Any thread may call it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPace:
    """So many steps.

    Attributes:
        steps: the number of the last one.
        first: the first step (from 0) of the learning rate's course.
        span: how many that has.
    """

    steps: int
    first: int = 0
    span: int

    @property
    def whole(self) -> float:
        return self.span

    def tell(self, step: int) -> Told:
        return 0, 0

    def moment(self, step: int, tokens: int, size: int, told: Told) -> Moment:
        return Moment(done=step - self.first, size=1, whole=self.span, last=step + 1 == self.steps)

    def over(self, step: int, tokens: int) -> bool:
        return step >= self.steps

    def check(self) -> int:
        return 0

    def sync(self) -> None:
        """Nothing is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPace:
    """So many real tokens: the step that reaches them is the last.

    Attributes:
        first: tokens before this phase.
        tokens: of this phase.
    """

    first: int
    tokens: int
    steps: None = None

    @property
    def whole(self) -> float:
        return self.tokens

    def tell(self, step: int) -> Told:
        return 0, 0

    def moment(self, step: int, tokens: int, size: int, told: Told) -> Moment:
        done = tokens - self.first
        return Moment(done=done, size=max(1, size), whole=self.tokens, last=done + size >= self.tokens)

    def over(self, step: int, tokens: int) -> bool:
        return tokens - self.first >= self.tokens

    def check(self) -> int:
        return 0

    def sync(self) -> None:
        """Nothing is told."""


@dataclass(slots=True, kw_only=True)
class TimePace:
    """So many seconds from the start of the first rank's process to the end of the command.

    The course begins when it is known what a step takes: reading, building and compiling, which come before, would else eat up the
    warm-up of a short training. A session that goes on from a kill repeats what was told, and has what was left then.

    Attributes:
        seconds: the budget.
        begun: the step (from 0) that this training begins with.
        closing: what a step takes, in seconds, to what comes after the last one: measuring, saving, finishing.
        clock: seconds since the process began.
    """

    seconds: float
    begun: int
    path: str
    world: World
    closing: Callable[[float], float]
    clock: Callable[[], float] = field(default_factory=lambda: process_clock())
    steps: None = None
    whole: float = WHOLE
    _lines: Lines = field(init=False)
    _told: list[Told] = field(init=False)
    _start: float = 0.0  # of the course, on the clock of the first session
    _offset: float = 0.0
    _replayed: int = 0
    _before: float | None = None
    _cold: int = 1
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def __post_init__(self) -> None:
        self._lines = Lines(storage.join(self.path, PACE), self.world)
        before = self._lines.read()
        self._told = [(int(line["begins"]), int(line["ends"])) for line in before]
        self._replayed = len(self._told)
        self._start = float(before[-1].get("start", 0.0)) if before else 0.0
        # The first step allocates and compiles. Several ranks are told of a step before the one before it runs.
        self._cold = 2 if self.world.size > 1 else 1

    def check(self) -> int:
        now = self.clock()
        if not self._told and now >= self.seconds:
            raise UsageError(
                f"budget ({self.seconds:g}s) was over before the first step: starting took {now:.1f} s; use {math.ceil(3 * now)}s or more"
            )
        return 0

    def tell(self, step: int) -> Told:
        now, number = self.clock(), step - self.begun
        self._see(now)
        if number < len(self._told):
            return self._told[number]
        typical = statistics.median(self._recent) if self._recent else 0.0
        until, earlier = self.seconds - self.closing(typical), self._told[-1][1] if self._told else 0
        if self._recent or self._replayed:
            course = max(1e-3, until - self._start)
            if number == self._replayed:  # the first step that is new after a kill
                self._offset = self._start + earlier * course / WHOLE - now
            ahead = typical if self.world.size > 1 else 0.0
            begins = max(earlier, int(WHOLE * (now + self._offset - self._start + ahead) / course))
            found = begins, begins + int(WHOLE * typical / course)
        else:
            self._start = now
            found = earlier, earlier + FIRST if now < until else WHOLE
        if earlier < WHOLE:  # of several ranks, the first asks for a step more than there will be
            self._told.append(found)
            self._lines.add({"step": step + 1, "begins": found[0], "ends": found[1], "start": round(self._start, 3)})
        return found

    def _see(self, now: float) -> None:
        """Learn what a step takes from the time since the last call."""
        if self._before is not None and self._cold == 0:
            self._recent.append(now - self._before)
        elif self._before is not None:
            self._cold -= 1
        self._before = now

    def moment(self, step: int, tokens: int, size: int, told: Told) -> Moment:
        begins, ends = told
        return Moment(done=begins, size=ends - begins, whole=WHOLE, last=_is_last(told))

    def over(self, step: int, tokens: int) -> bool:
        number = step - self.begun
        return 0 < number <= len(self._told) and _is_last(self._told[number - 1])

    def sync(self) -> None:
        self._lines.sync()


def _is_last(told: Told) -> bool:
    """Whether the step after it would not end in time."""
    begins, ends = told
    return ends + (ends - begins) >= WHOLE


def process_clock() -> Callable[[], float]:
    """Seconds since this process began, by a clock that nobody sets."""
    began = time.monotonic() - max(0.0, time.time() - psutil.Process().create_time())
    return lambda: time.monotonic() - began
