"""Publication of artifacts to Prefect by a background thread, so that no node waits for it."""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import threading
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

LAST_SECONDS = 5.0  # timeout for the rest of the queue when the run ends
Job = Callable[["SyncPrefectClient"], object]


class ArtifactPublisher:
    """Background thread that calls Prefect's API; a context manager. Failed calls are dropped."""

    def __init__(self, flow_run_id: str) -> None:
        self.flow_run_id = UUID(flow_run_id)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._work,), name="prefect-publisher", daemon=True
        )

    def __enter__(self) -> ArtifactPublisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
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
            while (job := self._jobs.get()) is not None:
                _try(job, client)


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
