"""The line of a night in the journal, which later nights, the trend page and `status` read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloze.core.errors import DataError
from cloze.flows.nightly import nightly_run
from cloze.flows.nightly.journal import FILE, Journal, user_on_host
from cloze.flows.nightly.nightly_run import NightlyRun
from cloze.flows.nightly.result import render_trend

NIGHT_LINE: dict[str, Any] = {
    "kind": "night", "started": 1.0, "ended": 2.0, "seen": [], "results": [], "candidate": None,
    "why": "", "champion": None, "failed": {}, "gone": [], "errors": 0,
}  # fmt: skip


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
        "by": user_on_host(),
    }


@pytest.mark.parametrize(
    "line",
    [
        {**NIGHT_LINE, "started": None},
        {**NIGHT_LINE, "started": 10**400},
        {**NIGHT_LINE, "seen": None},
        {**NIGHT_LINE, "results": "x"},
        {**NIGHT_LINE, "failed": ["x"]},
        {**NIGHT_LINE, "champion": "demo"},
        {**NIGHT_LINE, "champion": {"key": "a", "run": "demo"}},
        {"kind": "champion", "time": 1.0, "champion": {"run": "demo"}},
        {"kind": "rollback", "time": "yesterday"},
        {"kind": "registered", "key": "a", "version": "seven"},
    ],
)
def test_a_line_with_a_damaged_field_is_named_with_its_file_and_number(
    tmp_path: Path, line: dict[str, Any]
) -> None:
    """Skipped in silence, it could be a champion whose files `cloze clean` then removes."""
    journal = Journal(tmp_path)
    journal.append(NIGHT_LINE)
    journal.append(line)
    with pytest.raises(DataError, match=rf"{FILE}, line 2: .*{line['kind']}"):
        journal.champion()


def test_a_line_of_another_version_is_read(tmp_path: Path) -> None:
    champion = {"key": "a", "checkpoint": "/a", "run": "demo", "step": 1, "mood": "good"}
    journal = Journal(tmp_path)
    journal.append({**NIGHT_LINE, "champion": champion, "weather": "fine"})
    journal.append({"kind": "eclipse"})
    journal.append({"kind": "registered"})
    journal.append({"kind": "rollback"})
    journal.append({"kind": "night"})
    assert journal.champion() is not None
    assert len(journal.nights()) == 2
    assert (journal.seen(), journal.failures(), journal.version()) == (set(), {}, None)
    assert "demo" in render_trend(journal.nights(), journal.changes(), "UTC")
