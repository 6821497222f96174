"""Runs without a living process are marked, so that what they held is free again: their records, and Prefect's flow runs.

A flow run is dead if Prefect says that a process of this machine runs it (`infrastructure_pid`, which a process worker sets) and
there is none, or if it waits for a worker that has taken it and is gone. What runs on another machine is left to Prefect's own heartbeats.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil

from flows.graph import record
from pipeline.core import lock

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

PENDING_MINUTES = 5.0  # that a run may be taken by a worker and not begun
SETTLE_SECONDS = 10.0  # a state younger than that may be ahead of its process, or behind it


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that a run's record names. Attributes: alive: whether it holds the run's lease still."""

    host: str
    pid: int
    alive: bool


def sweep(runs: Path, api: str | None = None, *, mark: bool = True) -> list[str]:
    """Mark what is dead; a sentence for each.

    Args:
        api: the URL of a Prefect server's API; without it only our own records are looked at.
        mark: or only tell what is dead.

    Raises:
        Exception: the server does not answer.
    """
    owners = _owners(runs) if api is not None else {}
    dead = record.mark_dead(runs) if mark else record.dead(runs)
    told = [f"run {name}: its process is gone{'; marked crashed' if mark else ''}" for name in dead]
    return [*told, *_flow_runs(api, owners, mark)] if api is not None else told


def _owners(runs: Path) -> dict[str, Owner]:
    """Whose each flow run is, as the records of runs say."""
    found = {}
    for directory in record.directories(runs):
        held = lock.is_held(str(directory))
        for path in record.records_in(directory):
            with suppress(KeyError, TypeError):
                content = record.read_file(path)
                if content is not None and content["prefect"]:
                    alive = held and content["state"] == record.RUNNING
                    found[str(content["prefect"])] = Owner(host=content["host"], pid=content["pid"], alive=alive)
    return found


def _flow_runs(api: str, owners: Mapping[str, Owner], mark: bool) -> list[str]:
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    here = urlsplit(api).hostname in ("127.0.0.1", "localhost", "::1")
    with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as client:
        flow_runs = under_way(client)
        dead = [
            (found, why)
            for found in flow_runs
            if (why := death(found, owners.get(str(found.id)), here, datetime.now(timezone.utc)))
        ]
        if not mark:
            return [f"flow run {flow_run.name}: {why}" for flow_run, why in dead]
        return [told for flow_run, why in dead if (told := _mark(client, flow_run, why))]


def under_way(client: SyncPrefectClient) -> list[FlowRun]:
    """The flow runs that hold a process, or did: running, taken by a worker, or being cancelled."""
    from prefect.client.schemas import filters
    from prefect.client.schemas.objects import StateType

    states = filters.FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING, StateType.CANCELLING])
    wanted = filters.FlowRunFilter(state=filters.FlowRunFilterState(type=states))
    return client.read_flow_runs(flow_run_filter=wanted, limit=200)


def _mark(client: SyncPrefectClient, flow_run: FlowRun, why: str) -> str | None:
    """Give a dead flow run its end; what is told of it, None if it has gone on meanwhile."""
    from prefect.states import Cancelled, Crashed

    newest = client.read_flow_run(flow_run.id)
    if newest.state is None or flow_run.state is None or newest.state.id != flow_run.state.id:
        return None
    end: State[Any] = Cancelled(message=why) if flow_run.state.is_cancelling() else Crashed(message=why)
    client.set_flow_run_state(flow_run.id, end, force=True)  # which gives its deployment's slot back
    return f"flow run {flow_run.name}: {why}; marked {end.name}"


def death(flow_run: FlowRun, owner: Owner | None, here: bool, now: datetime) -> str | None:
    """Why a flow run that is under way cannot be alive; None if it lives, or if it cannot be judged from here.

    Args:
        owner: the process that our own record of it names.
        here: whether the server is this machine's own, so that its workers are, too.
    """
    state = flow_run.state
    if state is None or now - state.timestamp < timedelta(seconds=SETTLE_SECONDS):
        return None
    pid = (flow_run.infrastructure_pid or "").rpartition(":")[2]
    if pid.isdigit() and (here if owner is None else owner.host == socket.gethostname()):
        return None if _serves(int(pid), str(flow_run.id)) else f"its process {pid} is gone"
    if owner is not None and owner.host == socket.gethostname():  # started from a terminal
        return None if owner.alive or psutil.pid_exists(owner.pid) else f"its process {owner.pid} is gone"
    if state.is_pending() and not pid and now - state.timestamp > timedelta(minutes=PENDING_MINUTES):
        return f"it was taken {PENDING_MINUTES:.0f} minutes ago, and no process was started for it"
    return None


def _serves(pid: int, flow_run_id: str) -> bool:
    """Whether a process lives and is that flow run's: a worker names the run in the environment of what it starts."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and flow_run_id in process.environ().values()
    except psutil.AccessDenied:
        return True  # another user's: not to be judged
    except psutil.Error:
        return False
