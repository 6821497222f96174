"""Publication of artifacts to Prefect by a background thread, so that no node waits for the server.

The thread also polls whether the flow run was cancelled in Prefect where no worker handles that;
the process then gets SIGTERM.
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

from cloze.core.secrets import redact

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

log = logging.getLogger(__name__)

POLL_SECONDS = 3.0  # between checks whether the flow run was cancelled
WORKER_SECONDS = 15.0  # a worker's time to end a cancelled run
LAST_SECONDS = 5.0  # timeout for the rest of the queue when the run ends
Job = Callable[["SyncPrefectClient"], object]


class ArtifactPublisher:
    """Background thread that calls Prefect's API; a context manager. Failed calls are dropped."""

    def __init__(self, flow_run_id: str, by_worker: bool) -> None:
        """Prepare the thread; `by_worker`: a worker ends this process if the run is cancelled."""
        self.flow_run_id, self.by_worker = UUID(flow_run_id), by_worker
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._is_ending = False
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._work,), name="prefect-publisher", daemon=True
        )

    def __enter__(self) -> ArtifactPublisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ending = True  # the run has ended: no SIGTERM any more
        self._jobs.put(None)
        self._thread.join(LAST_SECONDS)

    def progress(self, key: str, task_run_id: str, node: str) -> ProgressArtifact:
        """Return a progress bar on the page of a task run; its text begins with the node's name."""
        return ProgressArtifact(self, key, UUID(task_run_id), node)

    def markdown(
        self, key: str, text: str, description: str, task_run_id: str | None = None
    ) -> None:
        """Publish a page on a flow or task run; pages with one key are versions of one artifact."""
        artifact = ArtifactCreate(
            key=artifact_key(key),
            type="markdown",
            data=redact(text),
            description=description,
            flow_run_id=self.flow_run_id,
            task_run_id=None if task_run_id is None else UUID(task_run_id),
        )
        self.put(lambda client: _create(client, artifact))

    def put(self, job: Job) -> None:
        self._jobs.put(job)

    def _work(self) -> None:
        with contextlib.suppress(Exception), get_client(sync_client=True) as client:
            polled = time.monotonic()
            while True:
                with contextlib.suppress(queue.Empty):
                    job = self._jobs.get(timeout=max(0.0, polled + POLL_SECONDS - time.monotonic()))
                    if job is None:
                        return
                    _try(job, client)
                if time.monotonic() > polled + POLL_SECONDS:
                    _try(self._poll, client)
                    polled = time.monotonic()

    def _poll(self, client: SyncPrefectClient) -> None:
        if not self._is_ending and self._is_cancelled(client):
            self._is_ending = True
            os.kill(os.getpid(), signal.SIGTERM)

    def _is_cancelled(self, client: SyncPrefectClient) -> bool:
        state = client.read_flow_run(self.flow_run_id).state
        if state is None or not state.is_cancelling():
            return False
        return not self.by_worker or time.time() - state.timestamp.timestamp() > WORKER_SECONDS


class ProgressArtifact:
    """A progress bar that any thread may set; only the newest unsent value is sent."""

    def __init__(
        self, publisher: ArtifactPublisher, key: str, task_run_id: UUID, node: str
    ) -> None:
        self._publisher, self._key, self._task_run_id = publisher, key, task_run_id
        self._node = node
        self._id: UUID | None = None
        self._queued = False
        self._value: tuple[float, str] = (0.0, "")

    def set(self, percent: float, description: str) -> None:
        self._value = (percent, description)
        if not self._queued:
            self._queued = True
            self._publisher.put(self._send)

    def _send(self, client: SyncPrefectClient) -> None:
        self._queued = False
        percent, description = self._value
        text = redact(f"{self._node}: {description}")  # all bars of a run stand on one page
        content: dict[str, Any] = {"data": round(percent, 1), "description": text}
        if self._id is None:
            artifact = ArtifactCreate(
                key=artifact_key(self._key),
                type="progress",
                flow_run_id=self._publisher.flow_run_id,
                task_run_id=self._task_run_id,
                **content,
            )
            self._id = _create(client, artifact)
        else:
            client.update_artifact(self._id, ArtifactUpdate(**content))


def _create(client: SyncPrefectClient, artifact: ArtifactCreate) -> UUID:
    return UUID(str(client.create_artifact(artifact).id))


def _try(job: Job, client: SyncPrefectClient) -> None:
    try:
        job(client)
    except Exception as error:
        log.debug("a call to Prefect failed: %s: %s", type(error).__name__, error)


def artifact_key(name: str) -> str:
    """Return the name as a Prefect key: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
