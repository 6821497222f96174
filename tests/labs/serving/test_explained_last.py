"""Explanations, which take many passes, let other requests pass."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cloze.labs.serving.http.served_model import ServedModel, ServingMetrics
from cloze.labs.serving.http.worker_process import WorkerProcess
from cloze.labs.serving.limits import Limits
from tests.labs.serving.test_recovers import Worker


class SlowExplainer(Worker):
    """A worker whose explanations take until `explained`; it notes the batches that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Any]] = []
        self.explained = asyncio.Event()

    async def answer(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        self.batches.append([fields["text"] for fields in requests])
        if any(fields.get("explain") for fields in requests):
            await self.explained.wait()
        return [dict(fields) for fields in requests]


@pytest.mark.parametrize("count", [1, 3, 8])
def test_other_requests_pass_explanations(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers: list[SlowExplainer] = []

    async def start(*_: Any) -> SlowExplainer:
        workers.append(SlowExplainer())
        return workers[-1]

    monkeypatch.setattr(WorkerProcess, "start", start)

    async def scenario() -> None:
        limits = Limits(max_wait_ms=0)
        model = ServedModel("m", lambda: ("1", "p"), {}, limits, tmp_path, ServingMetrics())
        await model.start()
        explained = [{"text": f"e{number}", "explain": True} for number in range(count)]
        slow = asyncio.create_task(model.answer(explained))
        await asyncio.sleep(0.05)
        for number in range(5):
            plain = [{"text": f"p{number}"}, {"text": "q", "explain": False}]
            assert await asyncio.wait_for(model.answer(plain), 20) == plain
        (worker,) = workers
        assert worker.batches[0] == ["e0"]
        assert sum("e" in text for batch in worker.batches for text in batch) == 1
        worker.explained.set()
        assert await asyncio.wait_for(slow, 20) == explained  # in order
        assert worker.batches[6:] == [[f"e{number}"] for number in range(1, count)]
        await model.close()

    asyncio.run(scenario())
