"""The deployments of the server that `cloze ui` has started: sent, listed, and their runs cancelled when it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from flows.graph import sweep
from flows.servers.services import POOL

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

POLL_SECONDS = 0.5


@contextmanager
def client(api: str) -> Iterator[SyncPrefectClient]:
    """A client of the server at `api`, whatever the user's own profile says."""
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as found:
        yield found


def send(api: str) -> list[str]:
    """The work pool, all deployments of `prefect.yaml` and the automations; the deployments as `flow/name`.

    Raises:
        ClozeError: Prefect refuses, or the file has a fault.
    """
    from flows.prefect.deploy import deploy

    return deploy(api).deployments


def cancel_all(api: str, seconds: float) -> int:
    """Cancel what the worker runs, and wait until it is through: each flow's ranks save a checkpoint. How many there were."""
    from prefect.states import Cancelling

    with client(api) as server:
        begun = _under_way(server)
        for flow_run in begun:
            with suppress(Exception):  # it has ended just now
                server.set_flow_run_state(flow_run.id, Cancelling(message="`cloze ui` ends"))
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and _under_way(server):
            time.sleep(POLL_SECONDS)
        return len(begun)


def _under_way(server: SyncPrefectClient) -> list[FlowRun]:
    """The runs of our pool that hold a process or will at once."""
    return [flow_run for flow_run in sweep.under_way(server) if flow_run.work_pool_name == POOL]
