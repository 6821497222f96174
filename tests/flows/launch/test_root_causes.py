"""Which of several failures is reported: the cause, not what its peers noticed of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.core.errors import (
    ClozeError,
    DataError,
    NotFiniteError,
    NotFiniteWeightsError,
    UsageError,
    error_event,
)
from cloze.flows.launch.launch_state import launch_result
from cloze.flows.launch.protocol import RanksLostError
from cloze.flows.machine.retry_policy import is_retryable
from tests.flows.launch.test_stopped import course_of

GLOO = RuntimeError(
    "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error "
    "[127.0.0.1]:926: Connection reset by peer."
    " This is typically caused by a remote worker hanging or bugs in the application. GLHF! 🏖️"
)
MESH = RuntimeError(
    "Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] "
    "no error"
)
FULL = OSError(28, "No space left on device", "/data/run/metrics.jsonl")


@pytest.mark.parametrize("kind", [NotFiniteError, NotFiniteWeightsError, UsageError, DataError])
def test_an_error_of_a_rank_keeps_its_kind(kind: type[ClozeError], tmp_path: Path) -> None:
    """By its kind a night knows a model of NaNs, and a node what a retry cannot mend."""
    course = course_of(tmp_path)
    course.update([(0, error_event(kind("x"))), (0, {"ended": kind.exit_code, "ours": False})])
    with pytest.raises(ClozeError, match="^x$") as caught:
        launch_result(course)
    assert type(caught.value) is kind
    assert not is_retryable(caught.value)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_full_disk_is_told_whoever_noticed_first(order: tuple[int, int], tmp_path: Path) -> None:
    course = course_of(tmp_path)
    errors = [GLOO, FULL]
    for rank in order:
        course.update([(rank, error_event(errors[rank])), (rank, {"ended": 1, "ours": False})])
    with pytest.raises(
        ClozeError,
        match=r"^/data/run/metrics.jsonl: No space left on device; free some space and run again$",
    ):
        launch_result(course)


@pytest.mark.parametrize(
    ("error", "short"), [(GLOO, "Connection reset by peer"), (MESH, "connectFullMesh failed")]
)
def test_a_lost_connection_is_a_sentence(error: Exception, short: str, tmp_path: Path) -> None:
    course = course_of(tmp_path)
    course.update(
        [
            (1, error_event(error)),
            (1, {"ended": 1, "ours": False}),
            (0, {"ended": -9, "ours": True}),
        ]
    )
    with pytest.raises(
        RanksLostError,
        match=rf"^toy rank 1 has lost its connection to another rank \({short}\): .*rank1.log\)$",
    ) as caught:
        launch_result(course)
    assert "GLHF" not in str(caught.value)


def test_a_users_fault_comes_before_all(tmp_path: Path) -> None:
    course = course_of(tmp_path)
    course.update([(0, error_event(FULL)), (0, {"ended": 1, "ours": False})])
    course.update([(1, error_event(UsageError("lower it"))), (1, {"ended": 2, "ours": False})])
    with pytest.raises(UsageError, match="^lower it$"):
        launch_result(course)
