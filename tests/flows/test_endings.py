"""How a run or a node ended, in the words of its record: each cause, in each state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cloze.core.errors import DataError, StoppedError, is_stop
from cloze.flows.graph import stages
from cloze.flows.run import status_file, status_writer

FAULTS = [DataError("a.jsonl is damaged"), ValueError("odd"), OSError("no disk")]
STOPS = [StoppedError("stopped at step 3"), KeyboardInterrupt(), SystemExit(143)]


@pytest.mark.parametrize("error", [None, *FAULTS, *STOPS], ids=repr)
def test_the_final_state_is_that_of_the_cause(error: BaseException | None) -> None:
    stops = error in STOPS
    expected = status_file.CANCELLED if stops else status_file.FAILED
    assert status_writer.final_state(error) == (status_file.FINISHED if error is None else expected)
    if error is not None:
        assert is_stop(error) == stops


@pytest.mark.parametrize(
    "state", [status_file.QUEUED, status_file.WAITING, status_file.RUNNING, ""]
)
@pytest.mark.parametrize("is_parallel", [True, False, None])
def test_an_interrupted_node_says_what_it_had_begun(
    state: str, is_parallel: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waited has begun nothing; of a training, the checkpoint is what counts."""
    monkeypatch.setattr(stages, "stage", lambda name: SimpleNamespace(parallel=is_parallel))
    node: Any = SimpleNamespace(node=SimpleNamespace(stage="toy"))
    found = status_writer.message(KeyboardInterrupt(), None if is_parallel is None else node, state)
    if state in (status_file.QUEUED, status_file.WAITING):
        assert found == "stopped while it waited, before it started; run again"
    elif is_parallel:
        assert found == "stopped before the first checkpoint; run again"
    else:
        assert found == "stopped; run again"


def test_an_error_is_its_own_message_and_none_has_none() -> None:
    assert status_writer.message(None) is None
    assert status_writer.message(DataError("a.jsonl is damaged")) == "a.jsonl is damaged"
    assert "odd" in str(status_writer.message(ValueError("odd"), None, status_file.QUEUED))
