"""What is tried again, and with how many processes."""

from __future__ import annotations

import pytest

from cloze.core.errors import ClozeError, DataError
from cloze.core.stages.execution import Execution
from cloze.flows.machine.retry_policy import RetryPolicy


def failure(sentence: str, step: int | None = None, died: bool = False) -> ClozeError:
    error = ClozeError(sentence)
    error.step, error.process_died = step, died
    return error


def test_the_same_words_at_the_same_step_are_not_tried_a_third_time() -> None:
    tries = RetryPolicy(Execution())
    assert tries.should_retry(failure("rank 1 hangs for 61 s", 12))
    assert tries.should_retry(failure("rank 1 hangs for 61 s", 13))
    assert tries.should_retry(failure("rank 1 was killed", 13))
    assert not tries.should_retry(failure("rank 1 was killed", 13))
    assert not RetryPolicy(Execution()).should_retry(DataError("a shard is cut short"))


def test_what_has_no_step_may_pass_however_often() -> None:
    tries = RetryPolicy(Execution())
    assert all(tries.should_retry(failure("the server does not answer")) for _ in range(3))


def test_a_process_that_dies_twice_is_done_without_where_that_is_allowed() -> None:
    tries = RetryPolicy(Execution(processes=4, min_processes=3))
    counts = []
    for step in range(20, 27):
        assert tries.should_retry(failure("rank 1 was killed", step, died=True))
        counts.append(tries.execution.processes)
    assert counts == [4, 3, 3, 3, 3, 3, 3]
    all_of_them = RetryPolicy(Execution(processes=4))
    assert all(
        all_of_them.should_retry(failure("rank 1 was killed", step, died=True)) for step in range(4)
    )
    assert all_of_them.execution.processes == 4


def test_fewer_processes_are_another_try_even_at_the_same_step() -> None:
    tries = RetryPolicy(Execution(processes=2, min_processes=1))
    assert tries.should_retry(failure("rank 1 was killed", 13, died=True))
    assert tries.should_retry(failure("rank 1 was killed", 13, died=True))
    assert tries.execution.processes == 1
    assert not tries.should_retry(failure("rank 1 was killed", 13, died=True))


@pytest.mark.parametrize(("gpus", "processes"), [(4, 4), (3, 3), (1, 2), (None, 4)])
def test_gpus_that_are_gone_are_done_without_at_once(gpus: int | None, processes: int) -> None:
    tries = RetryPolicy(Execution(processes=4, min_processes=2))
    assert tries.should_retry(
        failure("no such device", 5), None if gpus is None else list(map(str, range(gpus)))
    )
    assert tries.execution.processes == processes
