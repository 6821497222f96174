"""A sender that a signal has ended, such as the system's for want of memory, is started again."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from cloze.flows.tracking.spool import Spool


class Sender:
    """A process that ends as the test says."""

    code: int | None = None

    def __init__(self, *_: Any, **__: Any) -> None:
        self.stdin = None

    def poll(self) -> int | None:
        return self.code


@pytest.mark.parametrize(("code", "starts"), [(None, 1), (0, 1), (1, 1), (-9, 3), (-15, 3)])
def test_a_killed_sender_is_started_with_the_next_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None, starts: int
) -> None:
    """One that ends by itself has said why; metrics are too many to start one for each."""
    started: list[Sender] = []

    def start(*arguments: Any, **options: Any) -> Sender:
        started.append(Sender())
        started[-1].code = code
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    spool = Spool(tmp_path, "sqlite:///nothing.db")
    run = spool.start_run("before")
    assert not started
    spool.start_sender()
    spool.metrics(run, {"loss": 1.0}, 1)
    spool.tags(run, {"a": "b"})
    spool.text(run, "name", "text")
    assert len(started) == starts
