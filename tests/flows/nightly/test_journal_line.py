"""The line of a night in the journal, which later nights, the trend page and `status` read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cloze.flows.nightly import nightly_run
from cloze.flows.nightly.nightly_run import NightlyRun


def item(key: str) -> Any:
    return SimpleNamespace(key=key)


def test_a_night_s_line_has_every_field_and_what_failed_or_waits_is_not_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nightly_run, "time", SimpleNamespace(time=lambda: 200.0))
    night: Any = object.__new__(NightlyRun)
    night.started = 100.0
    night.candidates = {"a": item("A"), "b": item("B")}
    night.outcome = SimpleNamespace(
        choice=SimpleNamespace(
            new=[item("A"), item("B"), item("C"), item("D")], waiting=[item("C")]
        ),
        evaluated=[{"key": "A"}],
        candidate="A",
        why="it is better",
        pruned=[item("D")],
        errors={"x": 1, "y": 2},
    )
    assert night._journal_line({"b": "evaluate@b: damaged", "gone": "x"}, None) == {
        "kind": "night",
        "started": 100.0,
        "ended": 200.0,
        "seen": ["A", "D"],
        "results": [{"key": "A"}],
        "candidate": "A",
        "why": "it is better",
        "champion": None,
        "failed": {"B": "evaluate@b: damaged"},
        "gone": ["D"],
        "errors": 2,
    }
