"""When a server is started, and when its end is recorded: each condition by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cloze.flows.ui import service_process
from cloze.flows.ui.service_process import ServiceProcess


def supervised(
    monkeypatch: pytest.MonkeyPatch,
    *,
    process: Any = None,
    due: float = 0.0,
    cleaning: bool = False,
) -> tuple[Any, list[Any]]:
    """A service at second 100, and what is done to it."""
    monkeypatch.setattr(service_process, "time", SimpleNamespace(monotonic=lambda: 100.0))
    child: Any = object.__new__(ServiceProcess)
    child.process, child._not_before = process, due
    child._cleaning = SimpleNamespace(is_alive=lambda: cleaning)
    done: list[Any] = []
    monkeypatch.setattr(child, "_start", lambda: done.append("start"))
    monkeypatch.setattr(child, "_ended", lambda code: done.append(code))
    return child, done


@pytest.mark.parametrize(
    ("ready", "due", "cleaning", "started"),
    [
        (True, 100.0, False, True),
        (True, 99.0, False, True),
        (True, 100.1, False, False),
        (False, 0.0, False, False),
        (True, 0.0, True, False),
    ],
)
def test_it_starts_once_it_is_due_others_are_ready_and_the_last_is_cleaned_up(
    monkeypatch: pytest.MonkeyPatch, ready: bool, due: float, cleaning: bool, started: bool
) -> None:
    child, done = supervised(monkeypatch, due=due, cleaning=cleaning)
    child.supervise(ready)
    assert done == ["start"] * started


@pytest.mark.parametrize(("code", "done"), [(None, []), (0, [0]), (-9, [-9])])
@pytest.mark.parametrize("ready", [True, False])
def test_an_end_is_recorded_with_its_code_and_nothing_starts_meanwhile(
    monkeypatch: pytest.MonkeyPatch, code: int | None, done: list[int], ready: bool
) -> None:
    child, found = supervised(monkeypatch, process=SimpleNamespace(poll=lambda: code))
    child.supervise(ready)
    assert found == done
