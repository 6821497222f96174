"""A served model: a bounded queue, dynamic batches, and a worker that is replaced when needed.

    request -> queue -> batch of at most `max_batch` items -> worker -> answers

A batch leaves as soon as it is full, or `max_wait_ms` after its first item, and at most two batches
are at the worker: one is computed while the next is tokenized. So batches grow with the load. An
explanation takes many passes: it goes alone, when no other item waits, one at a time. If the worker
ends, the requests that it had are refused, the others wait for its successor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from cloze.core.errors import ClozeError, describe_os_error
from cloze.labs.serving.http.worker_process import WorkerLostError, WorkerProcess
from cloze.labs.serving.limits import Limits

SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ServingMetrics:
    """Metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        common: dict[str, Any] = {"labelnames": ["model"], "registry": registry}
        self.requests = Counter(
            "cloze_serve_requests", "Requests by HTTP status.", ["model", "status"],
            registry=registry,
        )  # fmt: skip
        self.restarts = Counter(
            "cloze_serve_worker_restarts", "Starts after a worker's end.", **common
        )
        self.seconds, self._batch_seconds, self._batch_items = (
            Histogram(f"cloze_serve_{name}", text, buckets=buckets, **common)
            for name, text, buckets in (
                ("request_seconds", "Time to an answer.", SECONDS),
                ("batch_seconds", "Time of a batch at the worker.", SECONDS),
                ("batch_items", "Items per batch.", SIZES),
            )
        )
        self.queue = Gauge("cloze_serve_queue_items", "Items that wait.", **common)
        self.ready = Gauge("cloze_serve_ready", "1: the model has a worker.", **common)

    def batch(self, model: str, items: int, seconds: float) -> None:
        """Record a batch that the worker answered."""
        self._batch_items.labels(model).observe(items)
        self._batch_seconds.labels(model).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)


log = logging.getLogger(__name__)

AT_WORKER = 2  # batches
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a restart
Resolve = Callable[[], tuple[str, str]]  # -> (version, checkpoint's path); may block


class QueueFullError(ClozeError):
    """The queue has no room for the request."""


class NotReadyError(ClozeError):
    """The model has no worker, and its last start failed."""


@dataclass(slots=True, eq=False)
class _Item:
    fields: Mapping[str, Any]
    answer: asyncio.Future[dict[str, Any]]
    arrived: float = field(default_factory=time.monotonic)

    @property
    def explains(self) -> bool:
        return bool(self.fields.get("explain"))


class ServedModel:
    """A model that answers requests; create it inside the event loop.

    Attributes:
        name: name in URLs.
        info: `verb` and `example` of the worker; empty until the first one is ready.
        version: version of a followed model, else the checkpoint's path.
    """

    def __init__(
        self,
        name: str,
        resolve: Resolve,
        config: Mapping[str, Any],
        limits: Limits,
        directory: Path,
        metrics: ServingMetrics,
        *,
        follows: bool = False,
    ) -> None:
        self.name, self._resolve, self._config, self._limits = name, resolve, config, limits
        self._directory, self._metrics, self._follows = directory, metrics, follows
        self.info: Mapping[str, Any] = {}
        self.version, self._path, self._error = "", "", ""
        self._worker: WorkerProcess | None = None
        self._started = 0
        self._explaining = False
        self._queue: deque[_Item] = deque()
        self._arrival, self._ready = asyncio.Event(), asyncio.Event()
        self._slots = asyncio.Semaphore(AT_WORKER)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    @property
    def queued(self) -> int:
        return len(self._queue)

    async def start(self) -> None:
        """Load the model; raises what its checkpoint raises."""
        self.version, self._path = await asyncio.to_thread(self._resolve)
        self._use(await self._start_worker(self._path))
        self._spawn(self._dispatch())
        if self._follows:
            self._spawn(self._follow())

    async def close(self) -> None:
        """End the worker and refuse what still waits."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for item in self._queue:
            if not item.answer.done():
                item.answer.set_exception(NotReadyError("the server stops; ask another one"))
        self._ready.clear()
        if self._worker is not None:
            await self._worker.close()

    async def answer(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return an answer or {"error": sentence} per request, in order.

        Raises:
            QueueFullError: the queue has no room for all of them.
            NotReadyError: no worker can be started.
            WorkerLostError: the worker died with one of them.
            asyncio.TimeoutError: there was no answer in time.
        """
        if self._error:
            raise NotReadyError(f"model {self.name} is being restarted: {self._error}")
        if len(self._queue) + len(requests) > self._limits.max_queue:
            raise QueueFullError(
                f"model {self.name} has {len(self._queue)} waiting requests; retry later"
            )
        loop = asyncio.get_running_loop()
        items = [_Item(fields, loop.create_future()) for fields in requests]
        self._queue.extend(items)
        self._arrival.set()
        answers = asyncio.gather(*(item.answer for item in items))
        return list(await asyncio.wait_for(answers, self._limits.timeout))

    async def _dispatch(self) -> None:
        while True:
            await self._slots.acquire()
            batch = await self._next_batch()
            await self._ready.wait()
            self._spawn(self._run(batch))

    async def _next_batch(self) -> list[_Item]:
        """Return the next items; those that nobody waits for are dropped."""
        batch: list[_Item] = []
        while not batch:
            while not self._candidates():
                self._arrival.clear()
                await self._arrival.wait()
            leaves = self._candidates()[0].arrived + self._limits.max_wait_ms / 1000
            while len(self._queue) < self._limits.max_batch:
                self._arrival.clear()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._arrival.wait(), leaves - time.monotonic())
                    continue
                break
            batch = self._candidates()[: self._limits.max_batch]
            for item in batch:
                self._queue.remove(item)
        self._explaining |= batch[0].explains
        return batch

    def _candidates(self) -> list[_Item]:
        """Return what may be computed next: items without explanation, else the first one with."""
        if any(item.answer.done() for item in self._queue):
            self._queue = deque(item for item in self._queue if not item.answer.done())
        plain = [item for item in self._queue if not item.explains]
        return plain or ([] if self._explaining else list(self._queue)[:1])

    async def _run(self, batch: Sequence[_Item]) -> None:
        assert self._worker is not None
        begin = time.monotonic()
        try:
            answers = await self._worker.answer([item.fields for item in batch])
        except WorkerLostError as error:
            for item in batch:
                if not item.answer.done():
                    item.answer.set_exception(WorkerLostError(str(error)))
        else:
            for item, answer in zip(batch, answers, strict=True):
                if not item.answer.done():
                    item.answer.set_result(answer)
            self._metrics.batch(self.name, len(batch), time.monotonic() - begin)
        finally:
            if batch[0].explains:
                self._explaining = False
                self._arrival.set()
            self._slots.release()

    async def _start_worker(self, path: str) -> WorkerProcess:
        self._started += 1
        directory = self._directory / f"{self.name}-{self._started}"
        worker = await WorkerProcess.start(directory, path, self._config)
        try:
            await worker.ready()
        except BaseException:
            await worker.close()
            raise
        return worker

    def _use(self, worker: WorkerProcess) -> None:
        self._worker, self.info, self._error = worker, worker.info, ""
        self._ready.set()
        self._spawn(self._watch(worker))

    async def _watch(self, worker: WorkerProcess) -> None:
        """Start the worker again if it ends while it is in use."""
        await worker.ended.wait()
        pause = FIRST_PAUSE
        if self._worker is worker:
            self._ready.clear()
            log.warning("model %s: %s; restarted", self.name, worker.end())
        while self._worker is worker:
            self._metrics.restarts.labels(self.name).inc()
            try:
                self._use(await self._start_worker(self._path))
            except (ClozeError, OSError) as error:  # such as a full disk, which may pass
                self._error = _sentence(error)
                log.warning("model %s: %s; restart in %.0f s", self.name, self._error, pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _follow(self) -> None:
        """Switch to the version that the alias names; the old worker answers what it has."""
        while True:
            await asyncio.sleep(self._limits.poll)
            try:
                version, path = await asyncio.to_thread(self._resolve)
                if version == self.version:
                    continue
                worker = await self._start_worker(path)
            except (ClozeError, OSError) as error:  # the old version goes on
                reason = _sentence(error)
                log.warning("model %s stays at version %s: %s", self.name, self.version, reason)
                continue
            old, self._path = self._worker, path
            self._use(worker)
            log.warning("model %s: version %s replaces %s", self.name, version, self.version)
            self.version = version
            if old is not None:
                await old.close(self._limits.timeout)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _sentence(error: ClozeError | OSError) -> str:
    return describe_os_error(error, "the disk") if isinstance(error, OSError) else str(error)
