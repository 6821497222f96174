"""`cloze doctor` names records that MLflow refused, and asks for no compiler where none is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.commands import doctor
from flows.tracking.refused import set_aside


def test_refused_records_are_shown_by_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOZE_RUNS", str(tmp_path))
    assert doctor._refused() == []
    (tmp_path / ".tracking").mkdir()
    for name in ("a", "b"):
        set_aside(tmp_path / ".tracking", {"op": "metrics", "metrics": [[name, 1.0, 0, 0]]}, "Invalid metric name")
    (row,) = doctor._refused()
    assert (row["ok"], row["found"].startswith("2 refused by MLflow: Invalid metric name")) == (False, True)
    assert len(json.dumps(row)) < 400


def test_no_compiler_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor._compiler() == {"check": "compiler", "found": doctor._compiler()["found"], "ok": True}
    assert "none" in doctor._compiler()["found"]
