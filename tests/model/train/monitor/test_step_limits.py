"""How long a step may take: ten times the median of the last fifty, but for the first steps."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.core.processes import RankPhase
from cloze.model.train.monitor import watchdog
from cloze.model.train.monitor.watchdog import StepTimer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.limits: list[tuple[int, float]] = []
        self.pauses: list[float] = []
        self.phases: list[Any] = []

    def monotonic(self) -> float:
        return self.now

    def begin_step(self, step: int, limit: float, pause_limit: float) -> None:
        self.limits.append((step, limit))
        self.pauses.append(pause_limit)

    def phase(self, phase: Any) -> Any:
        self.phases.append(phase)
        return nullcontext()

    def section(self, name: str) -> Any:
        self.phases.append(name)
        return nullcontext()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(watchdog, "time", found)
    return found


def timer(clock: Clock, floor: float, compiled: bool = False) -> StepTimer:
    world: Any = SimpleNamespace(pulse=clock, timeline=clock)
    return StepTimer(world, floor, compiled)


def steps(timed: StepTimer, clock: Clock, *seconds: float) -> None:
    for number, took in enumerate(seconds, 1):
        timed.begin(number)
        clock.now += took
    timed.begin(len(seconds) + 1)


HOUR = watchdog.LONG_SECONDS


def test_the_first_three_steps_have_an_hour_and_do_not_count(clock: Clock) -> None:
    timed = timer(clock, 5.0)
    steps(timed, clock, 90.0, 90.0, 90.0, 1.0, 3.0)
    assert clock.limits == [(1, HOUR), (2, HOUR), (3, HOUR), (4, HOUR), (5, 10.0), (6, 20.0)]
    assert timed.median_step_seconds == 2.0
    timed.end()
    assert clock.limits[-1] == (6, HOUR), "what follows the last step"
    assert set(clock.pauses) == {HOUR}, "an evaluation or a save in any step"


def test_a_pause_may_take_ten_times_the_longest_so_far(clock: Clock) -> None:
    timed = timer(clock, 5.0)
    steps(timed, clock, 1.0)
    for section, seconds in (("evaluation", 700.0), ("save", 20.0)):
        with timed.exclude(section):  # type: ignore[arg-type]
            clock.now += seconds
    timed.begin(3)
    assert clock.pauses[-1] == 7000.0


@given(
    floor=st.floats(1e-3, 1e6), compiled=st.booleans(), took=st.lists(st.floats(0, 1e5), max_size=9)
)
def test_nothing_is_without_a_limit_unless_a_person_says_so(
    floor: float, compiled: bool, took: list[float]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(watchdog, "time", clock)
        for seconds in (floor, 0.0):
            timed = timer(clock, seconds, compiled)
            steps(timed, clock, *took)
            with timed.exclude("save"):
                clock.now += sum(took)
            timed.end()
        half = len(clock.limits) // 2
    given_limits = [limit for _, limit in clock.limits] + clock.pauses
    assert all(limit >= floor for limit in (*given_limits[:half], *clock.pauses[:half]))
    assert not any(given_limits[half : 2 * half] + clock.pauses[half:])


@pytest.mark.parametrize(
    ("floor", "compiled", "limit"),
    [(0.0, False, 0.0), (30.0, False, 30.0), (5.0, False, 10.0), (5.0, True, 50.0)],
)
def test_a_limit_has_a_floor_which_compiled_steps_raise(
    clock: Clock, floor: float, compiled: bool, limit: float
) -> None:
    timed = timer(clock, floor, compiled)
    steps(timed, clock, *[1.0] * 4)
    assert timed.limit == limit


@pytest.mark.parametrize("slow", [24, 25, 26])
def test_the_median_is_that_of_the_last_fifty_steps(clock: Clock, slow: int) -> None:
    timed = timer(clock, 1.0)
    steps(timed, clock, *[9.0] * 3, *[8.0] * 40, *[1.0] * (50 - slow), *[2.0] * slow)
    assert timed.median_step_seconds == {24: 1.0, 25: 1.5, 26: 2.0}[slow]


def test_what_is_excluded_takes_no_time_of_a_step_and_waiting_is_for_data(clock: Clock) -> None:
    timed = timer(clock, 1.0)
    steps(timed, clock, *[1.0] * 3)
    with timed.exclude("save"):
        clock.now += 500
    clock.now += 2
    timed.begin(5)
    assert timed.median_step_seconds == 2.0
    assert clock.phases == [RankPhase.EVALUATING_OR_SAVING, "save"]
    assert list(timed.wait_for([7, 8])) == [7, 8]
    assert clock.phases[2:] == [RankPhase.DATA, "data"] * 3
