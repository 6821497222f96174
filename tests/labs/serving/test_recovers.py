"""A served model comes back after any trouble that passes: a full disk, a lost store."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cloze.core.errors import ClozeError, DataError
from cloze.labs.serving.http import served_model
from cloze.labs.serving.http.served_model import ServedModel, ServingMetrics
from cloze.labs.serving.http.worker_process import WorkerProcess
from cloze.labs.serving.limits import Limits

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/x")
TROUBLE = [
    FULL,
    OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
    BlockingIOError(errno.EAGAIN, "no process"),
    ConnectionResetError(errno.ECONNRESET, "the store is gone"),
    DataError("the checkpoint is cut short"),
]


class Worker:
    """A worker that answers; `ended` ends it."""

    def __init__(self) -> None:
        self.ended, self.info = asyncio.Event(), {"verb": "v"}

    async def ready(self) -> None: ...

    async def close(self, seconds: float = 0.0) -> None: ...

    def end(self) -> str:
        return "the worker was killed"

    async def answer(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [{"ok": True} for _ in requests]


@pytest.mark.parametrize("error", TROUBLE, ids=lambda error: type(error).__name__ + str(error)[:12])
def test_a_worker_is_started_until_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: ClozeError | OSError
) -> None:
    started: list[Worker] = []
    failures = [error, error, error]

    async def start(*_: Any) -> Worker:
        if started and failures:
            raise failures.pop()
        started.append(Worker())
        return started[-1]

    monkeypatch.setattr(WorkerProcess, "start", start)
    monkeypatch.setattr(served_model, "FIRST_PAUSE", 0.01)

    async def scenario() -> None:
        limits = Limits()
        model = ServedModel("m", lambda: ("1", "p"), {}, limits, tmp_path, ServingMetrics())
        await model.start()
        started[0].ended.set()
        for _ in range(500):
            await asyncio.sleep(0.01)
            if len(started) == 2 and model.is_ready:
                break
        assert await model.answer([{}]) == [{"ok": True}]
        await model.close()

    asyncio.run(scenario())
    assert failures == []


@pytest.mark.parametrize("error", TROUBLE, ids=lambda error: type(error).__name__ + str(error)[:12])
@pytest.mark.parametrize("where", ["resolve", "start"])
def test_an_alias_is_followed_after_the_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: ClozeError | OSError, where: str
) -> None:
    versions, failures = ["1"], [error, error]

    def fails(place: str) -> None:
        if place == where and versions[-1] == "2" and failures:
            raise failures.pop()

    def resolve() -> tuple[str, str]:
        fails("resolve")
        return versions[-1], "p"

    async def start(*_: Any) -> Worker:
        fails("start")
        return Worker()

    monkeypatch.setattr(WorkerProcess, "start", start)

    async def scenario() -> None:
        limits = Limits(poll=0.01)
        model = ServedModel("m", resolve, {}, limits, tmp_path, ServingMetrics(), follows=True)
        await model.start()
        versions.append("2")
        for _ in range(500):
            await asyncio.sleep(0.01)
            if model.version == "2":
                break
        assert model.version == "2"
        await model.close()

    asyncio.run(scenario())


def test_an_alias_is_looked_up_once_in_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[float] = []

    def resolve() -> tuple[str, str]:
        looked.append(time.monotonic())
        return "1", "p"

    async def start(*_: Any) -> Worker:
        return Worker()

    monkeypatch.setattr(WorkerProcess, "start", start)

    async def scenario() -> None:
        limits = Limits(poll=0.1)
        model = ServedModel("m", resolve, {}, limits, tmp_path, ServingMetrics(), follows=True)
        await model.start()
        await asyncio.sleep(0.25)
        await model.close()

    asyncio.run(scenario())
    assert all(later - sooner >= 0.09 for sooner, later in itertools.pairwise(looked))
