"""The figures of a session and of its last line: by steps' time alone, without the first step."""

from __future__ import annotations

from typing import Any

import pytest

from cloze.model.data.batch import TokenCounts
from cloze.model.train.throughput import MfuMeter, Throughput

PARTS = ("wall", "data", "forward", "backward", "optimizer", "evaluation", "save", "idle")


class Timeline:
    """Seconds by part, which the test moves."""

    def __init__(self) -> None:
        self.parts = dict.fromkeys(PARTS, 0.0)

    def seconds(self) -> dict[str, float]:
        return dict(self.parts)

    def spend(self, part: str, seconds: float) -> None:
        self.parts[part] += seconds
        self.parts["wall"] += seconds


OWN = TokenCounts(tokens=100, positions=120, attended=1000)


def session(meter: MfuMeter | None) -> tuple[Throughput, Any]:
    timeline: Any = Timeline()
    found = Throughput(timeline, meter)
    found.begin()
    for number in range(3):
        timeline.spend("forward", 50.0 if number == 0 else 1.5)  # the first one compiles
        timeline.spend("data", 0.5)
        found.step(400, OWN)
        timeline.spend("evaluation", 2.0)
    timeline.spend("save", 5.0)
    return found, timeline


@pytest.mark.parametrize("has_meter", [True, False])
def test_a_session_is_its_steps_but_the_first(has_meter: bool) -> None:
    seen: list[float] = []

    def flops(attended: float) -> float:
        seen.append(attended)
        return 5.0

    found, timeline = session(MfuMeter(flops, 1e4) if has_meter else None)
    wall = timeline.parts["wall"]
    assert found.session() == {
        "tokens_per_second": 200.0,
        "data_wait": 0.25,
        "mfu": 0.1 if has_meter else None,
        "evaluation_share": round(6.0 / wall, 4),
        "checkpoint_share": round(5.0 / wall, 4),
    }
    assert seen == [10.0] * has_meter, "attended of a token"


def test_a_line_counts_all_its_steps_and_starts_anew() -> None:
    found, timeline = session(None)
    line = found.line()
    steps = 50.0 + 3.0 + 1.5
    assert line == {
        "tokens_per_second": round(1200 / steps, 1),
        "data_wait": round(1.5 / steps, 4),
        "padded_tokens_per_second": round(1200 / steps * 1.2, 1),
    }
    timeline.spend("forward", 4.0)
    found.step(400, TokenCounts())
    assert found.line() == {"tokens_per_second": 100.0, "data_wait": 0.0}


def test_a_single_step_has_no_speed() -> None:
    timeline: Any = Timeline()
    found = Throughput(timeline, MfuMeter(lambda attended: 1.0, 1.0))
    found.begin()
    timeline.spend("forward", 1.0)
    found.step(100, OWN)
    figures = found.session()
    assert (figures["tokens_per_second"], figures["data_wait"], figures["mfu"]) == (None,) * 3
