"""What counts as stopped: a rank's own word, also of one that took so long to end that it was killed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.launchers.course import Course
from flows.launchers.protocol import Told
from pipeline.core.execution import Execution
from pipeline.core.stage import Build

SAVED = {"error": "stopped at step 7, checkpoint saved", "exit_code": 4}
KILLED = {"ended": -9, "ours": True}


@pytest.mark.parametrize(
    ("told", "stopped"),
    [
        ([(0, SAVED), (0, {"ended": 4, "ours": True})], True),
        ([(0, SAVED), (0, KILLED), (1, KILLED)], True),
        ([(0, KILLED), (1, KILLED)], False),
    ],
)
def test_a_rank_that_told_of_its_checkpoint_has_stopped(told: list[Told], stopped: bool, tmp_path: Path) -> None:
    build = Build(path=str(tmp_path), inputs={}, execution=Execution(), fingerprint="f")
    started: Any = SimpleNamespace(ranks=(0, 1), host=lambda rank: None)
    course = Course("toy", build, started, tmp_path)
    course.take(told)
    assert course.stopped is stopped
