"""Flow runs in progress on a Prefect server: mark zombie runs as crashed, or cancel all.

A flow run is dead if its process on this machine is gone, or if a worker took it and never started
a process. The process id is `infrastructure_pid`, set by a process worker. Flow runs of other hosts
are left to Prefect's heartbeats. Prefect is imported only when a server is queried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import psutil

from cloze.core.artifacts import lock
from cloze.core.processes import wait_until
from cloze.flows.run import cancellation, status_file

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

Entry = TypeVar("Entry")
Record = Mapping[str, Any]  # of a start, see `status_file`
PENDING_MINUTES = 5.0  # longest time from a worker taking a run to its start
STATE_SECONDS = 10.0  # a younger state may not match its process yet
POLL_SECONDS = 0.5


def sweep(runs: Path, api: str | None = None, *, mark: bool = True) -> list[str]:
    """Mark zombie runs as crashed; return one message each.

    Args:
        api: URL of a Prefect server's API. None: check local records only.
        mark: False: only report the zombie runs.

    Raises:
        ClozeError: the server does not answer.
    """
    owners = _owners(runs) if api is not None else {}
    dead = cancellation.mark_crashed(runs, write=mark)
    messages = [
        f"run {name}: its process is gone{'; marked crashed' if mark else ''}" for name in dead
    ]
    return [*messages, *_flow_runs(api, owners, mark)] if api is not None else messages


def _owners(runs: Path) -> dict[str, Record]:
    """Return the record of each flow run that has one, by flow run id."""
    owners: dict[str, Record] = {}
    for directory in status_file.directories(runs):
        for path in status_file.records_in(directory):
            with suppress(FileNotFoundError):
                content = status_file.read_file(path)
                if content is not None and content.get("prefect"):
                    owners[content["prefect"]] = status_file.as_it_is(content, path)
    return owners


def _flow_runs(api: str, owners: Mapping[str, Record], mark: bool) -> list[str]:
    from cloze.flows.prefect.client import connected

    is_local = urlsplit(api).hostname in ("127.0.0.1", "localhost", "::1")
    with connected(api) as client:
        messages = []
        for flow_run in active_flow_runs(client):
            owner = owners.get(str(flow_run.id))
            reason = death(flow_run, owner, is_local, datetime.now(timezone.utc))
            if reason is None:
                continue
            message = (
                _mark(client, flow_run, reason) if mark else f"flow run {flow_run.name}: {reason}"
            )
            if message is not None:
                messages.append(message)
        return messages


def active_flow_runs(client: SyncPrefectClient) -> list[FlowRun]:
    """Return flow runs that have or had a process: running, pending or cancelling."""
    from prefect.client.schemas import filters
    from prefect.client.schemas.objects import StateType

    states = filters.FlowRunFilterStateType(
        any_=[StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
    )
    active = filters.FlowRunFilter(state=filters.FlowRunFilterState(type=states))
    return read_all(lambda offset: client.read_flow_runs(flow_run_filter=active, offset=offset))


def cancel_all(api: str, pool: str, seconds: float) -> None:
    """Cancel a work pool's flow runs and wait until they have ended; trainings save checkpoints.

    Args:
        seconds: longest time to wait.
    """
    from prefect.states import Cancelling

    from cloze.flows.prefect.client import connected

    with connected(api) as client:

        def remaining() -> list[FlowRun]:
            return [
                flow_run for flow_run in active_flow_runs(client) if flow_run.work_pool_name == pool
            ]

        for flow_run in remaining():
            with suppress(Exception):  # the run has just ended
                client.set_flow_run_state(flow_run.id, Cancelling(message="`cloze ui` is stopping"))
        wait_until(lambda: not remaining(), seconds, POLL_SECONDS)


def read_all(read: Callable[[int], list[Entry]]) -> list[Entry]:
    """Return all entries of a paginated list; `read` returns the page at an offset."""
    entries: list[Entry] = []
    while page := read(len(entries)):
        entries += page
    return entries


def _mark(client: SyncPrefectClient, flow_run: FlowRun, why: str) -> str | None:
    """Set a dead flow run's final state; return a message, or None if the state changed."""
    from prefect.states import Cancelled, Crashed

    newest = client.read_flow_run(flow_run.id)
    if newest.state is None or flow_run.state is None or newest.state.id != flow_run.state.id:
        return None
    final_state: State[Any] = (
        Cancelled(message=why) if flow_run.state.is_cancelling() else Crashed(message=why)
    )
    # also frees the deployment's concurrency slot
    client.set_flow_run_state(flow_run.id, final_state, force=True)
    return f"flow run {flow_run.name}: {why}; marked {final_state.name}"


def death(flow_run: FlowRun, owner: Record | None, here: bool, now: datetime) -> str | None:
    """Return why a flow run in progress must be dead. None: it is alive, or this host cannot tell.

    Args:
        owner: the run's local record, which names its process.
        here: the server runs on this machine, and so do its workers.
    """
    state = flow_run.state
    if state is None or now - state.timestamp < timedelta(seconds=STATE_SECONDS):
        return None
    pid = (flow_run.infrastructure_pid or "").rpartition(":")[2]
    is_ours = owner is not None and lock.is_this_machine(owner)
    if pid.isdigit() and (here if owner is None else is_ours):
        return None if _serves(int(pid), str(flow_run.id)) else f"its process {pid} is gone"
    if owner is not None and is_ours:  # started from a terminal
        is_alive = owner["state"] == status_file.RUNNING or psutil.pid_exists(owner["pid"])
        return None if is_alive else f"its process {owner['pid']} is gone"
    pending = now - state.timestamp
    if state.is_pending() and not pid and pending > timedelta(minutes=PENDING_MINUTES):
        return f"a worker took it {PENDING_MINUTES:.0f} minutes ago and started no process"
    return None


def _serves(pid: int, flow_run_id: str) -> bool:
    """Return whether the process is alive and has the flow run's id in its environment."""
    try:
        process = psutil.Process(pid)
        return (
            process.status() != psutil.STATUS_ZOMBIE and flow_run_id in process.environ().values()
        )
    except psutil.AccessDenied:
        return True  # another user's process: cannot be checked
    except psutil.Error:
        return False
