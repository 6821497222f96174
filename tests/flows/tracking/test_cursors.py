"""Cursors of records: both ids are kept, locks make their folder, a machine has a name for its boot."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.flows.tracking import spool, spool_state
from cloze.flows.tracking.spool_state import RunCursor


def test_ids_and_positions_of_a_run_are_kept_beside_each_other(tmp_path: Path) -> None:
    place = tmp_path / "a" / "spools"
    assert spool_state.read(place, "run") == RunCursor()
    spool_state.write_ids(place, "run", "7", "abc")
    spool_state.write(place, "run", RunCursor(step=5, sample=3, attempt=2))
    spool_state.write(place, "run", RunCursor(step=4, sample=9, attempt=1))
    expected = RunCursor(step=5, sample=9, attempt=2, experiment="7", mlflow="abc")
    assert spool_state.read(place, "run") == expected
    spool_state.write_ids(place, "run", "8", "def")
    assert spool_state.read(place, "run") == RunCursor(
        step=5, sample=9, attempt=2, experiment="8", mlflow="def"
    )
    assert spool_state.read(place, "other") == RunCursor()


def test_a_lock_makes_its_folder(tmp_path: Path) -> None:
    for _ in range(2):
        with spool_state.exclusive(tmp_path / "a" / "b", "x.lock"):
            assert (tmp_path / "a" / "b" / "x.lock").exists()


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([{"op": "start"}], RunCursor(attempt=1)),
        ([{"op": "start", "attempt": 3}, {"op": "start", "attempt": 2}], RunCursor(attempt=3)),
        ([{"op": "metrics", "metrics": []}], RunCursor()),
        (
            [
                {"op": "metrics", "metrics": [("a", 1, 7, 0), ("a", 1, 5, 0)]},
                {"op": "metrics", "metrics": [("a", 1, 6, 0)]},
            ],
            RunCursor(step=7),
        ),
        ([{"op": "metrics", "metrics": [("a", 1, 7, 0)], "series": "system"}], RunCursor(sample=7)),
        ([{"op": "end"}], RunCursor()),
    ],
)
def test_records_move_a_cursor_of_their_own_run(
    records: list[dict[str, object]], expected: RunCursor
) -> None:
    mine, other = RunCursor(), RunCursor()
    for record in records:
        mine.see("r", {"run": "r", **record})
        other.see("s", {"run": "r", **record})
    assert (mine, other) == (expected, RunCursor())


def test_a_boot_has_a_name_and_where_linux_tells_none_an_empty_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(spool.boot()) == 8

    def refuse(self: Path, encoding: str) -> str:
        raise OSError("no /proc")

    monkeypatch.setattr(Path, "read_text", refuse)
    assert spool.boot() == ""
