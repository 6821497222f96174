"""What people do in Prefect to a flow run whose process works: it reads its own state to notice.

Suspend, Pause, Delete and "Change state" reach no process.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound, Pause
from prefect.runtime import flow_run
from prefect.states import Cancelled, Running, Suspended

POLL_SECONDS = 5.0


class EndRequested(BaseException):
    """The flow run was suspended, ended or deleted in Prefect."""


def watch(is_over: Callable[[], bool], call: Callable[[], object]) -> None:
    """Call once when the flow run is suspended, ended or deleted, until `is_over`."""

    def poll() -> None:
        while not is_over():
            time.sleep(POLL_SECONDS)
            state = current()
            if state is not None and (state.is_paused() or _is_final(state)):
                call()
                return
            if state is not None and state.is_crashed() and not is_over():
                write(Running(message="its process lives"))  # the machine was asleep

    threading.Thread(target=contextvars.copy_context().run, args=(poll,), daemon=True).start()


def current() -> State[Any] | None:
    """Return the flow run's state, Cancelled if it was deleted; None: the server is silent."""
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:
        try:
            return client.read_flow_run(flow_run.id).state
        except ObjectNotFound:
            return Cancelled(message="it was deleted in Prefect")
    return None


def write(state: State[Any]) -> None:
    """Set the flow run's state, if the server answers."""
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:
        client.set_flow_run_state(flow_run.id, state, force=True)


def _is_final(state: State[Any]) -> bool:
    """Return whether a person ended the run; Crashed is also set when its machine is silent."""
    return state.is_final() and not state.is_crashed()


def is_ended() -> bool:
    """Return whether the flow run is cancelled, deleted or ended by hand."""
    state = current()
    return state is not None and (state.is_cancelling() or _is_final(state))


def suspension(error: BaseException) -> State[Any] | None:
    """Return the state of a suspended flow run that `error` interrupts; None: another cause."""
    if not isinstance(error, (EndRequested, Pause)):  # Pause: Prefect noticed first
        return None
    state = current() or Suspended()
    return state if state.is_paused() or isinstance(error, Pause) else None


def keep_suspended(message: str, suspended: State[Any]) -> State[Any]:
    """Return the flow run's state Suspended, set again after the last heartbeats.

    The automation for silent runs ends its watch with this event; Resume starts a new process.
    """
    expires = suspended.state_details.pause_timeout
    state: State[Any] = Suspended(message=message, pause_expiration_time=expires)
    write(state)
    return state
