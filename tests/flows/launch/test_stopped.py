"""What counts as stopped: a rank's own word, also of one that took so long to end that it was
killed.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloze.core.errors import StoppedError
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.flows.launch.launch_state import LaunchState, launch_result
from cloze.flows.launch.protocol import RankEvent, RanksLostError

SAVED = {"error": "stopped at step 7, checkpoint saved", "exit_code": 4}
KILLED = {"ended": -9, "ours": True}


def course_of(path: Path) -> LaunchState:
    build = BuildContext(path=str(path), inputs={}, execution=Execution(), fingerprint="f")
    started: Any = SimpleNamespace(ranks=(0, 1), host=lambda rank: None)
    return LaunchState("toy", build, started, path)


def test_one_that_told_its_error_and_was_ended_after_that_was_not_asked_to_stop(
    tmp_path: Path,
) -> None:
    """As where a full disk has ended its agent."""
    course = course_of(tmp_path)
    course.update([(1, {"error": "the checkpoint could not be written", "exit_code": 1})])
    course.update([(1, {"ended": -15, "ours": True}), (0, KILLED)])
    with pytest.raises(RanksLostError, match="the checkpoint could not be written"):
        launch_result(course)
    silent = course_of(tmp_path)
    silent.update([(1, {"ended": -15, "ours": False}), (0, KILLED)])
    with pytest.raises(StoppedError):
        launch_result(silent)


@pytest.mark.parametrize(
    ("reported", "stopped"),
    [
        ([(0, SAVED), (0, {"ended": 4, "ours": True})], True),
        ([(0, SAVED), (0, KILLED), (1, KILLED)], True),
        ([(0, KILLED), (1, KILLED)], False),
    ],
)
def test_a_rank_that_told_of_its_checkpoint_has_stopped(
    reported: list[RankEvent], stopped: bool, tmp_path: Path
) -> None:
    course = course_of(tmp_path)
    course.update(reported)
    assert course.stopped is stopped
