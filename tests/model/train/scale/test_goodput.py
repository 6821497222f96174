"""How much of a training is progress: the rules for saving beside a simulation."""

from __future__ import annotations

import math

import pytest

from model.train.scale import goodput
from model.train.scale.goodput import Faults

HOUR, DAY = 3600.0, 86_400.0
FREQUENT = Faults(between=3 * HOUR, restart=100.0, stall=2.0, writing=2.0)


def test_llama_3_was_interrupted_every_three_hours() -> None:
    assert goodput.between_interruptions(16_384) == pytest.approx(54 * DAY / 419)
    assert goodput.between_interruptions(8) == pytest.approx(2048 * goodput.between_interruptions(16_384))


def test_nothing_is_lost_where_nothing_fails_and_saving_costs_nothing() -> None:
    assert goodput.simulate(Faults(between=1e15, restart=60.0, stall=0.0), 600.0, work=DAY, seed=1) == 1.0
    stalled = goodput.simulate(Faults(between=1e15, restart=60.0, stall=6.0), 600.0, work=DAY, seed=1)
    assert stalled == pytest.approx(DAY / (DAY + 143 * 6.0)), "144 stretches, of which the last needs no save"


def test_an_interruption_costs_the_steps_since_the_save_and_a_restart() -> None:
    """At most a stretch, its save and a restart each time."""
    faults = Faults(between=HOUR, restart=60.0, stall=1.0)
    found = goodput.simulated(faults, 300.0, work=30 * DAY, seeds=range(4))
    assert found == pytest.approx(goodput.expected(faults, 300.0), rel=0.01)
    assert goodput.simulated(faults, 300.0, work=30 * DAY, seeds=range(4)) == found, "the same draws"


def test_what_is_still_being_written_does_not_count() -> None:
    slow = Faults(between=HOUR, restart=60.0, stall=1.0, writing=250.0)
    fast = Faults(between=HOUR, restart=60.0, stall=1.0, writing=1.0)
    lost = [goodput.simulated(faults, 300.0, work=30 * DAY, seeds=range(4)) for faults in (fast, slow)]
    assert lost[0] - lost[1] > 0.03
    assert lost[1] == pytest.approx(goodput.expected(slow, 300.0), rel=0.02)
    endless = Faults(between=HOUR, restart=60.0, stall=1.0, writing=900.0)
    assert 0 < goodput.simulate(endless, 300.0, work=DAY, seed=1) < lost[1], "a save waits for the one before"


def test_the_rules_find_what_the_simulation_finds() -> None:
    young, daly = goodput.young(FREQUENT), goodput.daly(FREQUENT)
    assert young == pytest.approx(math.sqrt(2 * 2.0 * 3 * HOUR))
    assert daly == pytest.approx(young, rel=0.05)
    best, reached = goodput.best_simulated(FREQUENT, work=60 * DAY, seeds=range(3), around=daly)
    assert goodput.simulated(FREQUENT, daly, work=60 * DAY, seeds=range(3)) > reached - 0.002, "the optimum is flat"
    assert 0.4 * daly < best < 2.5 * daly
    for interval in (daly / 8, daly * 8):
        assert goodput.expected(FREQUENT, interval) < goodput.expected(FREQUENT, daly)


def test_one_that_is_always_interrupted_ends_all_the_same() -> None:
    hopeless = Faults(between=10.0, restart=60.0, stall=1.0)
    assert goodput.simulate(hopeless, 600.0, work=HOUR, seed=1) < 0.01
    assert goodput.daly(hopeless) <= hopeless.between
