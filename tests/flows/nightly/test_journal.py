"""The journal: what was seen, who is champion, and what a kill leaves of a line."""

from __future__ import annotations

import os
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cloze.core.errors import UsageError
from cloze.flows.nightly.journal import CHAMPION, NIGHT, REGISTERED, Champion, Journal, roll_back


def champion(step: int, since: float = 0) -> Champion:
    key = f"{'a' * 64}/checkpoints/step-{step:08d}"
    return Champion(
        key=key,
        checkpoint=f"/runs/{step}",
        run="demo",
        step=step,
        scores={"sst2": 80.0 + step},
        since=since,
        why=f"why {step}",
    )


def night(promoted: Champion | None = None, **values: Any) -> dict[str, Any]:
    empty = {
        "kind": NIGHT,
        "started": 1.0,
        "ended": 2.0,
        "seen": [],
        "results": [],
        "candidate": None,
        "why": "",
        "failed": {},
        "gone": [],
    }
    return {**empty, "champion": asdict(promoted) if promoted else None, **values}


def test_the_champion_follows_from_the_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.champion() is None
    assert journal.changes() == []
    journal.append(night(champion(1, since=10), seen=["one"]))
    journal.append(night(seen=["two"]))
    journal.append(night(champion(2, since=20)))
    assert journal.champion() == champion(2, since=20)
    assert journal.seen() == {"one", "two"}
    assert [
        (change.champion.step, change.replaced.step if change.replaced else None)
        for change in journal.changes()
    ] == [(1, None), (2, 1)]


def test_rollbacks_lead_further_back_each_time(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for step in (1, 2, 3):
        journal.append(night(champion(step)))
    assert roll_back(journal, "it swears").step == 2
    assert roll_back(journal, "by hand").step == 1
    now = journal.champion()
    assert now is not None
    assert now.step == 1
    assert [(change.kind, change.champion.step, change.why) for change in journal.changes()][
        3:
    ] == [("rollback", 2, "it swears"), ("rollback", 1, "by hand")]
    with pytest.raises(UsageError, match="no champion before"):
        roll_back(journal, "by hand")
    journal.append(night(champion(4)))
    assert roll_back(journal, "by hand").step == 1


def test_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(night(champion(1)))
    with journal.path.open("ab") as stream:
        stream.write(b'{"kind": "night", "seen": ["to')
    assert journal.champion() == champion(1)
    assert journal.seen() == set()
    journal.append(night(champion(2)))
    assert [line["kind"] for line in journal.lines()] == [NIGHT, NIGHT]
    assert journal.champion() == champion(2)


def test_mlflows_version_is_the_present_champions(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(night(champion(1)))
    assert journal.version() is None
    journal.append({"kind": REGISTERED, "time": 1.0, "key": champion(1).key, "version": 7})
    journal.append(night())
    assert journal.version() == 7
    journal.append(night(champion(2)))
    assert journal.version() is None
    journal.append({"kind": CHAMPION, "time": 2.0, "champion": asdict(champion(3))})
    assert journal.version() is None
    assert journal.champion() == champion(3)
    journal.append({"kind": REGISTERED, "time": 2.5, "key": champion(3).key, "version": 4})
    assert journal.version() == 4
    roll_back(journal, "by hand")
    assert journal.version() is None


def test_nights_do_not_overlap(tmp_path: Path) -> None:
    """The lease is the kernel's; a second holder in the same process is refused as one
    in another.
    """
    journal, refused = Journal(tmp_path), []

    def second() -> None:
        try:
            with Journal(tmp_path).lease():
                pass
        except UsageError as error:
            refused.append(str(error))

    with journal.lease():
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert len(refused) == 1
    assert refused[0].startswith("a nightly run is in progress (process ")
    with journal.lease():
        pass


def test_a_line_is_on_disk_as_a_whole_when_it_is_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut loses what was not yet in the file at `fsync`."""
    synced: list[bytes] = []
    journal = Journal(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(journal.path.read_bytes()))
    for number in range(2):
        journal.append(night(seen=[str(number)]))
        assert len(synced) == number + 1
        assert synced[-1] == journal.path.read_bytes()
        assert synced[-1].endswith(b"\n")
    assert [each["seen"] for each in journal.nights()] == [["0"], ["1"]]
