"""Cursors of records: both ids are kept, locks make their folder, a machine has a name for its boot."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from cloze.core.errors import ClozeError
from cloze.flows.tracking import spool, spool_sender, spool_state
from cloze.flows.tracking.mlflow_writer import MlflowWriter, Registry
from cloze.flows.tracking.spool_sender import SpoolSender
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


def test_a_lock_that_another_process_does_not_release_is_waited_for_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder may be asleep; the sentence names it, and what one does."""
    monkeypatch.setattr(spool_state, "LOCK_SECONDS", 0.1)
    with (
        spool_state.exclusive(tmp_path, "x.lock"),
        pytest.raises(
            TimeoutError, match=rf"x\.lock is held by process {os.getpid()} on .* end it"
        ),
    ):
        spool_state.write_ids(tmp_path, "run", "7", "abc")  # another lock
        with spool_state.exclusive(tmp_path, "x.lock"):
            pass
    with spool_state.exclusive(tmp_path, "x.lock"):
        pass


def test_a_run_goes_on_while_another_process_holds_the_cursors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_state, "LOCK_SECONDS", 0.1)
    records = spool.Spool(tmp_path, "sqlite:///none")
    with spool_state.exclusive(tmp_path, spool_state.CURSORS_LOCK):
        records.end_run(records.start_run("a"))
    assert "cursors.lock is held by process" in str(records.failures[0])
    records.close()


def test_a_record_that_waits_for_a_lock_is_no_dead_letter(tmp_path: Path) -> None:
    def send(record: object) -> None:
        raise TimeoutError("runs.lock is held")

    def write(is_writable: bool = True) -> bool:
        return is_writable

    sender = SpoolSender(cast(MlflowWriter, SimpleNamespace(send=send, is_writable=write)))
    for _ in range(2 * spool_sender.TRIES):
        with pytest.raises(TimeoutError):
            sender._send_or_set_aside(tmp_path / "a.jsonl", 0, {"op": "end", "run": "r"})
    assert not spool_state.count_dead_letters(tmp_path)


def test_a_command_that_waits_for_a_lock_ends_with_its_sentence() -> None:
    registry = object.__new__(Registry)
    with pytest.raises(ClozeError, match="models.lock is held by process 7"), registry._asking():
        raise TimeoutError("models.lock is held by process 7; end it")


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

    def refuse(path: str) -> str:
        raise OSError("no /proc")

    monkeypatch.setattr(os, "readlink", refuse)
    assert spool.boot() == ""
