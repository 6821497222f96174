"""What people do in Prefect to a flow run whose process works: it reads its own state to notice.

Suspend, Pause, Delete and "Change state" reach no process; Cancel does through a worker alone.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.events.worker import EventsWorker
from prefect.exceptions import ObjectNotFound, Pause
from prefect.flow_engine import BaseFlowRunEngine
from prefect.runtime import deployment, flow_run
from prefect.settings import temporary_settings
from prefect.states import Cancelled, Running, Suspended

from cloze.flows.prefect.client import LIMITS

POLL_SECONDS = 3.0
WORKER_SECONDS = 15.0  # a worker's time to end a cancelled run
# a look comes again soon, and a process that ends may be killed soon
brief = functools.partial(temporary_settings, LIMITS)


class EndRequested(BaseException):
    """The flow run was suspended, ended or deleted in Prefect; `args`: its state."""


def watch(is_over: Callable[[], bool], call: Callable[[State[Any]], object]) -> None:
    """Call once, with its state, when the flow run is suspended, ended or deleted."""

    def poll() -> None:
        seen = math.inf  # since when it is cancelled; clocks of hosts differ
        while not is_over():
            time.sleep(POLL_SECONDS)
            state, now = current(), time.monotonic()
            seen = min(seen, now) if state.is_cancelling() else math.inf
            by_worker = state.is_cancelling() and deployment.id and now - seen < WORKER_SECONDS
            if state.is_paused() or (is_ended(state) and not by_worker):
                call(state)
                return
            if state.is_crashed() and not is_over():  # the machine was asleep
                write(Running(message="its process lives"))

    threading.Thread(target=contextvars.copy_context().run, args=(poll,), daemon=True).start()


def current() -> State[Any]:
    """Return the flow run's state; Cancelled if it was deleted, Running if the server is silent."""
    state: State[Any] | None = None
    with contextlib.suppress(Exception), brief(), get_client(sync_client=True) as client:
        try:
            state = client.read_flow_run(flow_run.id).state
        except ObjectNotFound:
            state = Cancelled(name="Deleted", message="deleted in Prefect")
    return state or Running()


def write(state: State[Any]) -> None:
    """Set the flow run's state, if the server answers."""
    with contextlib.suppress(Exception), brief(), get_client(sync_client=True) as client:
        client.set_flow_run_state(flow_run.id, state, force=True)


def ignore_suspend() -> None:
    """Let the flow run end as its work did: a Suspend comes too late to stop anything.

    Prefect's engine asks at a flow's end, and would leave it Suspended without a process, which the
    automation for silent runs calls Crashed. Its server lets a suspended run end in any state.
    """
    context = FlowRunContext.get()
    if context is not None:
        context.flow_run_suspension_request.raise_if_requested = lambda: None  # type: ignore[method-assign]


def settled(state: State[Any]) -> State[Any]:
    """Return the end of a flow run whose work is over: Cancelled if a Cancel came too late.

    Prefect's server lets a run that is Cancelling end in no other state, and leaves it so.
    """
    if flow_run.id is None or not current().is_cancelling():
        return state
    return Cancelled(message=f"cancelled when its work was over: {state.message or state.name}")


def is_ended(state: State[Any]) -> bool:
    """Return whether a person ended the run; Crashed is also set when its machine is silent."""
    return state.is_cancelling() or (state.is_final() and not state.is_crashed())


def suspension(error: BaseException) -> State[Any] | None:
    """Return the state of a suspended flow run that `error` interrupts; None: another cause."""
    if isinstance(error, EndRequested):
        return error.args[0] if error.args[0].is_paused() else None
    return current() if isinstance(error, Pause) else None  # Prefect noticed first


def keep_suspended(message: str, suspended: State[Any]) -> State[Any]:
    """Return the flow run's state Suspended, set again after the last heartbeats.

    The automation for silent runs ends its watch with this event; Resume starts a new process.
    """
    _end_heartbeats()
    expires = suspended.state_details.pause_timeout
    state: State[Any] = Suspended(message=message, pause_expiration_time=expires)
    write(state)
    return state


def _end_heartbeats() -> None:
    """Send no more, and wait for those on their way: after Suspended, one begins a new watch."""
    # The engine stops its thread seconds later. Its process has no other run.
    BaseFlowRunEngine._emit_flow_run_heartbeat = lambda *_: None  # type: ignore[method-assign]
    here = contextvars.copy_context()  # whose settings name the server

    def wait() -> None:
        here.run(EventsWorker.instance).wait_until_empty()

    sent = threading.Thread(target=wait, daemon=True)
    sent.start()
    sent.join(5)  # the server may be away
