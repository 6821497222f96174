"""Which states of its flow run, set by people, end a working process, and which do not."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from prefect import states
from prefect.client.schemas.objects import State, StateType
from prefect.types._datetime import now

from cloze.flows.prefect import flow_state
from tests.conftest import REPOSITORY

ENDING: dict[str, State[Any]] = {
    "Suspended": states.Suspended(timeout_seconds=60),
    "Paused": states.Paused(timeout_seconds=60),
    "Cancelled": states.Cancelled(),
    "Failed": states.Failed(),
    "Completed": states.Completed(),
}
LIVING: dict[str, State[Any]] = {
    "Running": states.Running(),
    "Pending": states.Pending(),
    "Scheduled": states.Scheduled(),
    "Late": State(type=StateType.SCHEDULED, name="Late"),
    "AwaitingRetry": states.AwaitingRetry(),
    "Retrying": states.Retrying(),
}


def ended_by(monkeypatch: pytest.MonkeyPatch, state: State[Any], looks: int = 8) -> bool:
    """Whether a process that looks so many times at that state is ended by it."""
    called: list[State[Any]] = []
    seen: list[State[Any]] = []
    done = threading.Event()

    def is_over() -> bool:
        if called or len(seen) >= looks:
            done.set()
        return done.is_set()

    def current() -> State[Any]:
        seen.append(state)
        return state

    def end(state: State[Any]) -> None:
        called.append(state)
        done.set()

    monkeypatch.setattr(flow_state, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(flow_state, "write", seen.append)
    monkeypatch.setattr(flow_state, "current", current)
    flow_state.watch(is_over, end)
    assert done.wait(60)
    return bool(called)


@pytest.mark.parametrize("name", ENDING)
def test_what_a_person_has_ended_or_paused_ends(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended_by(monkeypatch, ENDING[name])


@pytest.mark.parametrize("name", LIVING)
def test_other_states_end_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not ended_by(monkeypatch, LIVING[name])


def test_a_run_that_lives_is_no_crashed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[State[Any]] = []
    looks: Iterator[State[Any]] = iter([states.Crashed(), states.Cancelled()])
    done = threading.Event()
    monkeypatch.setattr(flow_state, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(flow_state, "write", written.append)
    monkeypatch.setattr(flow_state, "current", lambda: next(looks))
    flow_state.watch(lambda: False, lambda _: done.set())
    assert done.wait(60)
    assert [state.name for state in written] == ["Running"]


@pytest.mark.parametrize("hours", [-10, 0, 10])
@pytest.mark.parametrize("waits", [False, True])
def test_a_worker_has_its_time_to_end_a_run_by_whatever_clock(
    hours: int, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clocks of the server and of this machine differ, and are set."""
    monkeypatch.setattr(flow_state, "deployment", SimpleNamespace(id="x"))
    monkeypatch.setattr(flow_state, "WORKER_SECONDS", 3600.0 if waits else 0.0)
    state = State(type=StateType.CANCELLING, timestamp=now("UTC") + timedelta(hours=hours))
    assert ended_by(monkeypatch, state) is not waits


def test_what_of_prefect_is_not_public_is_there() -> None:
    """`ignore_suspend` needs a field of the flow run's context that has no public counterpart."""
    from prefect.context import FlowRunContext

    name = "flow_run_suspension_request"
    assert name in FlowRunContext.model_fields, f"Prefect's FlowRunContext has no {name} any more"
    request = FlowRunContext.model_fields[name].get_default(call_default_factory=True)
    assert callable(getattr(request, "raise_if_requested", None)), (
        f"{name}.raise_if_requested of Prefect is gone"
    )


def test_no_private_module_of_prefect_is_imported() -> None:
    found = [
        f"{path.name}: {name}"
        for path in (REPOSITORY / "flows").rglob("*.py")
        for name in re.findall(r"prefect(?:\.\w+)*\._\w+", path.read_text(encoding="utf-8"))
    ]
    assert not found
