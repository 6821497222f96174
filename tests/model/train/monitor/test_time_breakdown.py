"""Where time goes: parts in parts, aside, and on a device that runs behind its host."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cloze.model.data.batch import TokenCounts
from cloze.model.train import throughput as module
from cloze.model.train.throughput import MfuMeter, Throughput, TimeBreakdown


def shares(line: dict[str, float]) -> float:
    return sum(line.values())


def test_the_parts_add_up_to_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _clock(monkeypatch)
    timeline = TimeBreakdown()
    with timeline.section("forward"):
        clock[0] += 1.0
    with timeline.section("backward"):
        clock[0] += 1.0
        with timeline.section("communication"):
            clock[0] += 3.0
        clock[0] += 1.0
    with timeline.section("evaluation"):
        clock[0] += 1.0
        with timeline.section("communication"), timeline.section("forward"):
            clock[0] += 1.0
    with timeline.section("data"):
        clock[0] += 1.0
    clock[0] += 1.0
    line = timeline.line()
    assert (line["time_forward"], line["time_backward"], line["time_other"]) == pytest.approx(
        (0.1, 0.2, 0.1)
    )
    assert line["time_evaluation"] == pytest.approx(0.2), "what is done in an evaluation is its own"
    assert line["time_communication"] == pytest.approx(0.3)
    assert shares(line) == pytest.approx(1.0)
    clock[0] += 1.0
    assert timeline.line()["time_other"] == 1.0, "a line begins where the one before it ended"


def test_a_part_that_is_open_at_a_line_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _clock(monkeypatch)
    timeline = TimeBreakdown()
    with timeline.section("save"):
        clock[0] += 2.0
        assert timeline.line()["time_save"] == 1.0
        clock[0] += 1.0
    clock[0] += 1.0
    assert timeline.line()["time_save"] == pytest.approx(0.5)


class Event:
    """An event of a device that has passed all up to `Event.passed`; its own clock is `Event.now`,
    in milliseconds.
    """

    now, passed = 0.0, 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = Event.now

    def query(self) -> bool:
        return self.at <= Event.passed

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


def test_a_gpu_is_never_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts count by its own clock, when they have passed; the host's waiting counts where it
    had nothing to do.
    """
    clock = _clock(monkeypatch)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    Event.now = Event.passed = 0.0
    timeline = TimeBreakdown(torch.device("cuda"))
    with timeline.section("data"):
        clock[0] += 2.0  # nothing runs yet
    for part in ("forward", "backward", "optimizer"):
        with timeline.section(part, on_device=True):
            clock[0] += 0.1  # to launch it
            Event.now += 1000.0
    with timeline.section("data"):
        clock[0] += 1.7  # the device computes
    Event.passed = 2000.0  # the optimizer's end has not passed
    line = timeline.line()
    assert line["time_forward"] == line["time_backward"] == pytest.approx(1 / 4)
    assert line["time_optimizer"] == 0.0
    assert line["time_data"] == pytest.approx(2 / 4), (
        "but it is not known yet that the device was busy"
    )
    Event.passed = 3000.0
    clock[0] += 1.0
    later = timeline.line()
    assert later["time_optimizer"] == 1.0
    assert shares(line) == shares(later) == pytest.approx(1.0)


def test_exchange_inside_of_a_backward_pass_is_taken_out_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = _clock(monkeypatch)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    Event.now = Event.passed = 0.0
    timeline = TimeBreakdown(torch.device("cuda"))
    with timeline.section("backward", on_device=True):
        Event.now += 1000.0
        with timeline.section("communication", on_device=True):
            Event.now += 3000.0
        Event.now += 500.0
    with timeline.section("evaluation"), timeline.section("forward", on_device=True):
        Event.now += 700.0
        clock[0] += 10.0
    Event.passed = Event.now
    seconds = timeline.seconds()
    assert (seconds["backward"], seconds["communication"], seconds["forward"]) == (1.5, 3.0, 0.0)
    assert seconds["evaluation"] == 10.0


def test_throughput_is_that_of_the_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations and saves are left out, waiting for data is not; the session leaves out the first
    step, which compiles.
    """
    clock = _clock(monkeypatch)
    timeline = TimeBreakdown()
    throughput = Throughput(timeline, None)
    clock[0] += 50.0  # building the model
    throughput.begin()
    clock[0] += 10.0
    throughput.step(100, TokenCounts(50, 60, 0))
    with timeline.section("evaluation"):
        clock[0] += 20.0
    assert throughput.line() == {
        "tokens_per_second": 10.0,
        "data_wait": 0.0,
        "padded_tokens_per_second": 12.0,
    }
    with timeline.section("data"):
        clock[0] += 1.0
    clock[0] += 1.0
    throughput.step(100, TokenCounts(50, 60, 0))
    line = throughput.line()
    assert (line["tokens_per_second"], line["data_wait"]) == (50.0, 0.5)
    with timeline.section("save"):
        clock[0] += 18.0
    session = throughput.session()
    assert (session["tokens_per_second"], session["data_wait"], session["mfu"]) == (50.0, 0.5, None)
    assert (session["evaluation_share"], session["checkpoint_share"]) == (0.2, 0.18)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_session_of_one_step_has_no_speed(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its only step has compiled; with a meter the MFU is that of the others."""
    clock = _clock(monkeypatch)
    throughput = Throughput(TimeBreakdown(), MfuMeter(lambda seen: 2.0 * seen, 100.0))
    throughput.begin()
    for _ in range(steps):
        clock[0] += 10.0
        throughput.step(100, TokenCounts(50, 60, 200))
    session = throughput.session()
    expected = (10.0, 0.0, 0.8) if steps > 1 else (None, None, None)
    assert (session["tokens_per_second"], session["data_wait"], session["mfu"]) == expected
    line = throughput.line()
    assert ("mfu" in line, "padded_tokens_per_second" in line) == (steps > 0, steps > 0)


def _clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]

    class Time:
        @staticmethod
        def perf_counter() -> Any:
            return clock[0]

    monkeypatch.setattr(module, "time", Time)
    return clock
