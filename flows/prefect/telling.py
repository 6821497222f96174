"""What goes to Prefect beside the states: artifacts, from a thread of their own, so that no node ever waits for the server.

The same thread looks whether somebody cancels the flow run in Prefect where no worker does it; the process then gets SIGTERM.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import signal
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate

from pipeline.core.secrets import masked

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

log = logging.getLogger(__name__)

LOOK_SECONDS = 3.0
WORKER_SECONDS = 15.0  # that a worker has to end a cancelled run by itself
LAST_SECONDS = 5.0  # for what is still to be told when the run ends
Job = Callable[["SyncPrefectClient"], object]


class Teller:
    """A thread that talks to Prefect's API in the background. A context manager; what fails is left out."""

    def __init__(self, flow_run_id: str, by_worker: bool) -> None:
        """Args: by_worker: whether a worker started this process, and ends it when the flow run is cancelled."""
        self.flow_run_id, self.by_worker = UUID(flow_run_id), by_worker
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._asked = False
        self._thread = threading.Thread(target=copy_context().run, args=(self._work,), name="prefect-teller", daemon=True)

    def __enter__(self) -> Teller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._asked = True  # from here on nobody is to be stopped any more
        self._jobs.put(None)
        self._thread.join(LAST_SECONDS)

    def progress(self, task_run_id: str) -> Progress:
        """A progress bar on the page of a task run."""
        return Progress(self, UUID(task_run_id))

    def markdown(self, key: str, text: str, description: str, task_run_id: str | None = None) -> None:
        """A page on that of the flow run or the task run; those with one key are versions of each other."""
        artifact = ArtifactCreate(
            key=key_of(key),
            type="markdown",
            data=masked(text),
            description=description,
            flow_run_id=self.flow_run_id,
            task_run_id=None if task_run_id is None else UUID(task_run_id),
        )
        self.put(lambda client: _created(client, artifact))

    def put(self, job: Job) -> None:
        self._jobs.put(job)

    def _work(self) -> None:
        with contextlib.suppress(Exception), get_client(sync_client=True) as client:
            looked = time.monotonic()
            while True:
                with contextlib.suppress(queue.Empty):
                    job = self._jobs.get(timeout=max(0.0, looked + LOOK_SECONDS - time.monotonic()))
                    if job is None:
                        return
                    _try(job, client)
                if time.monotonic() > looked + LOOK_SECONDS:
                    _try(self._look, client)
                    looked = time.monotonic()

    def _look(self, client: SyncPrefectClient) -> None:
        if not self._asked and self._is_cancelled(client):
            self._asked = True
            os.kill(os.getpid(), signal.SIGTERM)

    def _is_cancelled(self, client: SyncPrefectClient) -> bool:
        state = client.read_flow_run(self.flow_run_id).state
        if state is None or not state.is_cancelling():
            return False
        return not self.by_worker or time.time() - state.timestamp.timestamp() > WORKER_SECONDS


class Progress:
    """One progress bar. Any thread may set it; the server hears at most one value every few seconds."""

    def __init__(self, teller: Teller, task_run_id: UUID) -> None:
        self._teller, self._task_run_id = teller, task_run_id
        self._id: UUID | None = None
        self._queued = False
        self._value: tuple[float, str] = (0.0, "")

    def set(self, percent: float, description: str) -> None:
        self._value = (percent, description)
        if not self._queued:
            self._queued = True
            self._teller.put(self._send)

    def _send(self, client: SyncPrefectClient) -> None:
        self._queued = False
        percent, description = self._value
        told: dict[str, Any] = {"data": round(percent, 1), "description": masked(description)}
        if self._id is None:
            artifact = ArtifactCreate(
                type="progress", flow_run_id=self._teller.flow_run_id, task_run_id=self._task_run_id, **told
            )
            self._id = _created(client, artifact)
        else:
            client.update_artifact(self._id, ArtifactUpdate(**told))


def _created(client: SyncPrefectClient, artifact: ArtifactCreate) -> UUID:
    return UUID(str(client.create_artifact(artifact).id))


def _try(job: Job, client: SyncPrefectClient) -> None:
    try:
        job(client)
    except Exception as error:
        log.debug("Prefect was not told: %s: %s", type(error).__name__, error)


def key_of(name: str) -> str:
    """A name as Prefect's keys are: small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
