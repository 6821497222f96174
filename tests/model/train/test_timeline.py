"""Where time goes: parts in parts, aside, and on a device that runs behind its host."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from model.train import timeline as module
from model.train.timeline import Timeline


def shares(line: dict[str, float]) -> float:
    return sum(line.values())


def test_the_parts_add_up_to_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _clock(monkeypatch)
    timeline = Timeline()
    with timeline.part("forward"):
        clock[0] += 1.0
    with timeline.part("backward"):
        clock[0] += 1.0
        with timeline.part("communication"):
            clock[0] += 3.0
        clock[0] += 1.0
    with timeline.part("evaluation"):
        clock[0] += 1.0
        with timeline.part("communication"), timeline.part("forward"):
            clock[0] += 1.0
    with timeline.part("data"):
        clock[0] += 1.0
    clock[0] += 1.0
    line = timeline.line()
    assert (line["time_forward"], line["time_backward"], line["time_other"]) == pytest.approx((0.1, 0.2, 0.1))
    assert line["time_evaluation"] == pytest.approx(0.2), "what is done in an evaluation is its own"
    assert line["time_communication"] == pytest.approx(0.3)
    assert shares(line) == pytest.approx(1.0)
    clock[0] += 1.0
    assert timeline.line()["time_other"] == 1.0, "a line begins where the one before it ended"


def test_a_part_that_is_open_at_a_line_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _clock(monkeypatch)
    timeline = Timeline()
    with timeline.part("save"):
        clock[0] += 2.0
        assert timeline.line()["time_save"] == 1.0
        clock[0] += 1.0
    clock[0] += 1.0
    assert timeline.line()["time_save"] == pytest.approx(0.5)


def test_evaluations_are_told_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _clock(monkeypatch)
    timeline = Timeline()
    with timeline.part("evaluation"):
        clock[0] += 10.0
    assert timeline.evaluations() == {}
    clock[0] += 90.0
    assert timeline.evaluations() == {"evaluation_share": 0.1}


class Event:
    """An event of a device that has passed all up to `Event.passed`; its own clock is `Event.now`, in milliseconds."""

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
    """Its parts count by its own clock, when they have passed; the host's waiting counts where it had nothing to do."""
    clock = _clock(monkeypatch)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    Event.now = Event.passed = 0.0
    timeline = Timeline(torch.device("cuda"))
    with timeline.part("data"):
        clock[0] += 2.0  # nothing runs yet
    for part in ("forward", "backward", "optimizer"):
        with timeline.part(part, on_device=True):
            clock[0] += 0.1  # to launch it
            Event.now += 1000.0
    with timeline.part("data"):
        clock[0] += 1.7  # the device computes
    Event.passed = 2000.0  # the optimizer's end has not passed
    line = timeline.line()
    assert line["time_forward"] == line["time_backward"] == pytest.approx(1 / 4)
    assert line["time_optimizer"] == 0.0
    assert line["time_data"] == pytest.approx(2 / 4), "but it is not known yet that the device was busy"
    Event.passed = 3000.0
    clock[0] += 1.0
    later = timeline.line()
    assert later["time_optimizer"] == 1.0
    assert shares(line) == shares(later) == pytest.approx(1.0)


def test_exchange_inside_of_a_backward_pass_is_taken_out_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _clock(monkeypatch)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    Event.now = Event.passed = 0.0
    timeline = Timeline(torch.device("cuda"))
    with timeline.part("backward", on_device=True):
        Event.now += 1000.0
        with timeline.part("communication", on_device=True):
            Event.now += 3000.0
        Event.now += 500.0
    with timeline.part("evaluation"), timeline.part("forward", on_device=True):
        Event.now += 700.0
        clock[0] += 10.0
    Event.passed = Event.now
    seconds = timeline.seconds()
    assert (seconds["backward"], seconds["communication"], seconds["forward"]) == (1.5, 3.0, 0.0)
    assert seconds["evaluation"] == 10.0


def _clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]

    class Time:
        @staticmethod
        def perf_counter() -> Any:
            return clock[0]

    monkeypatch.setattr(module, "time", Time)
    return clock
