"""A Suspend or a Cancel that comes when the work is over, before the flow has returned: set in-process, on a
real server, by Prefect's own engine.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from prefect import flow, flow_engine
from prefect._flow_run_suspension import mark_flow_run_suspension_requested
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import Pause
from prefect.flow_engine import BaseFlowRunEngine, run_flow
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling, Completed, Suspended

from cloze.core.errors import DataError
from cloze.flows.prefect import flow_state, graph_run, nightly
from tests.operations.servers import Operations, until

pytestmark = pytest.mark.timeout(600)


def suspend_now() -> None:
    """What a person does in the UI, and what the engine's observer hears some seconds later."""
    with get_client(sync_client=True) as client:
        state: State[Any] = Suspended(timeout_seconds=3600)
        client.set_flow_run_state(flow_run.id, state)
        found = client.read_flow_run(flow_run.id).state
    assert found is not None
    assert found.is_paused()
    assert mark_flow_run_suspension_requested(UUID(str(flow_run.id)), found)


def end_of(operations: Operations, flow: Any) -> tuple[str, str]:
    """Type and name of the state on the server, after a deployment's run of the flow."""
    with (
        temporary_settings({PREFECT_API_URL: operations.api}),
        get_client(sync_client=True) as client,
    ):
        deployment = client.create_deployment(
            client.create_flow(flow), f"late-{os.urandom(4).hex()}"
        )
        run = client.create_flow_run_from_deployment(deployment)
        with contextlib.suppress(Pause):
            run_flow(flow, flow_run=run, return_type="state")
        state = client.read_flow_run(run.id).state
    assert state is not None
    return state.type.value, str(state.name)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plan, no record: only what is between the work and the flow's end."""

    @contextlib.contextmanager
    def session(*_: Any, **__: Any) -> Iterator[Any]:
        yield SimpleNamespace(failures={}, error=None)

    monkeypatch.setattr(graph_run, "RunSession", session)
    for module in (graph_run, nightly):
        monkeypatch.setattr(module, "watch_parent", lambda: None)


def ended() -> State[Any]:
    return Completed(message="2 nodes built")


def failed() -> State[Any]:
    raise DataError("shard 3 is cut short; make it again")


def broken() -> State[Any]:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("work", "end"),
    [(ended, "Completed"), (failed, "Failed"), (broken, "Failed")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_full_run_ends_as_its_work_did(
    operations: Operations,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[], State[Any]],
    end: str,
) -> None:
    def run_as_tasks(*_: Any) -> State[Any]:
        suspend_now()
        return work()

    monkeypatch.setattr(graph_run, "run_as_tasks", run_as_tasks)
    assert end_of(operations, graph_run.full_run) == (end.upper(), end)


@pytest.mark.parametrize(
    ("result", "end"),
    [
        ({"evaluated": [{}], "errors": {}}, ("COMPLETED", "Evaluated")),
        ({"evaluated": [], "errors": {}}, ("COMPLETED", "Completed")),
        ({"evaluated": [], "errors": {"sst2": DataError("cut short")}}, ("FAILED", "Failed")),
    ],
    ids=["evaluated", "nothing new", "failed"],
)
def test_a_night_keeps_the_name_of_its_end(
    operations: Operations,
    monkeypatch: pytest.MonkeyPatch,
    result: dict[str, Any],
    end: tuple[str, str],
) -> None:
    def evaluate(*_: Any) -> Any:
        suspend_now()
        return SimpleNamespace(summary="1 new checkpoint", trend="trend.html", **result)

    monkeypatch.setattr(nightly, "_evaluate", evaluate)
    assert end_of(operations, nightly.nightly_evaluation) == end


def test_a_cancel_that_comes_too_late_ends_as_cancelled_with_what_was_done(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the run stays Cancelling, and its process is over."""

    def cancel_now() -> None:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(flow_run.id, Cancelling())

    def run_as_tasks(*_: Any) -> State[Any]:
        cancel_now()
        return works.pop()()

    def evaluate(*_: Any) -> Any:
        cancel_now()
        return SimpleNamespace(summary="1 new", trend="t", evaluated=[{}], errors={})

    monkeypatch.setattr(graph_run, "run_as_tasks", run_as_tasks)
    monkeypatch.setattr(nightly, "_evaluate", evaluate)
    works = [failed, ended]
    while works:
        assert end_of(operations, graph_run.full_run) == ("CANCELLED", "Cancelled")
    assert end_of(operations, nightly.nightly_evaluation) == ("CANCELLED", "Cancelled")


def test_a_suspend_during_the_work_still_suspends(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_as_tasks(*_: Any) -> State[Any]:
        suspend_now()
        raise Pause(state=Suspended(timeout_seconds=3600))

    monkeypatch.setattr(graph_run, "run_as_tasks", run_as_tasks)
    assert end_of(operations, graph_run.full_run) == ("PAUSED", "Suspended")


def test_no_heartbeat_follows_suspended(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One would begin a watch of 90 s, at whose end the suspended run is called Crashed."""
    monkeypatch.setattr(flow_engine, "MINIMUM_HEARTBEAT_INTERVAL", 1)
    monkeypatch.setattr(BaseFlowRunEngine, "heartbeat_seconds", 1)
    monkeypatch.setattr(
        BaseFlowRunEngine, "_emit_flow_run_heartbeat", BaseFlowRunEngine._emit_flow_run_heartbeat
    )
    ids: list[str] = []

    def events() -> list[str]:
        """Of the run, as they occurred."""
        found = operations.call(
            "/events/filter",
            {
                "filter": {
                    "resource": {"id": [f"prefect.flow-run.{ids[0]}"]},
                    "event": {"prefix": ["prefect.flow-run."]},
                    "order": "ASC",
                },
                "limit": 50,
            },
        )["events"]
        return [event["event"].removeprefix("prefect.flow-run.") for event in found]

    @flow(name="suspended-while-it-beats")
    def beats() -> None:
        ids.append(str(flow_run.id))
        until(lambda: events().count("heartbeat") >= 2)
        suspended: State[Any] = Suspended(timeout_seconds=3600)
        state = flow_state.keep_suspended("nothing saved", suspended)
        time.sleep(4)  # what the engine takes to end, on a busy machine
        raise Pause(state=state)

    assert end_of(operations, beats) == ("PAUSED", "Suspended")
    found = until(lambda: "Suspended" in events() and events())
    assert found.index("Suspended") == len(found) - 1, found
