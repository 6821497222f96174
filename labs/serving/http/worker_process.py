"""A worker process of `cloze serve`, driven from the server's event loop.

`cloze.labs.serving.worker` is its other end: batches go to its standard input, events come from a
pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cloze.core.errors import ClozeError, DataError, UsageError
from cloze.core.processes import PARENT_PID, describe_exit
from cloze.core.stages.execution import Execution
from cloze.core.stages.worker import EVENTS_FD, Job
from cloze.flows.graph import stages
from cloze.flows.launch.local import RANK_ENVIRONMENT
from cloze.flows.ui.service_process import last_error

STAGE = "serve"
LONGEST_EVENT = 1 << 28  # bytes of an event: the answers of a batch
CLOSE_SECONDS = 5.0


class WorkerLostError(ClozeError):
    """The worker process ended, or is being closed."""


class WorkerProcess:
    """A started worker; `ready` waits for its model.

    Attributes:
        info: `verb` and `example` that the worker reported; empty until it is ready.
    """

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process, self._log = process, log
        self._answers: dict[int, asyncio.Future[list[dict[str, Any]]]] = {}
        self._numbers = itertools.count()
        self._error: Mapping[str, Any] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reader: asyncio.Task[None] | None = None
        self.info: Mapping[str, Any] = {}
        self.ended = asyncio.Event()

    @classmethod
    async def start(
        cls, directory: Path, checkpoint: str, config: Mapping[str, Any]
    ) -> WorkerProcess:
        """Start a worker.

        Args:
            directory: directory for its job and log.
            config: values of `ServingConfig`.
        """
        directory.mkdir(parents=True, exist_ok=True)
        job = Job(
            stage=STAGE,
            reference=stages.TOOLS.reference(STAGE),
            config=dict(config),
            path=str(directory),
            inputs={"checkpoint": checkpoint},
            execution=Execution().model_dump(mode="json"),
            fingerprint="",
        )
        job.write(str(directory / "job.json"))
        log = directory / "worker.log"
        with contextlib.ExitStack() as stack, log.open("ab") as output:
            read_end, write_end = os.pipe()
            stack.callback(os.close, write_end)
            kept = stack.enter_context(contextlib.ExitStack())
            kept.callback(os.close, read_end)  # unless the process starts
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "cloze.model.worker", str(directory / "job.json"),
                stdin=asyncio.subprocess.PIPE, stdout=output, stderr=output,
                pass_fds=(write_end,), start_new_session=True,
                env={
                    **RANK_ENVIRONMENT, **os.environ, EVENTS_FD: str(write_end),
                    PARENT_PID: str(os.getpid()),
                },
            )  # fmt: skip
            kept.pop_all()
        worker = cls(process, log)
        reader = asyncio.StreamReader(limit=LONGEST_EVENT)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", buffering=0)
        )
        worker._reader = asyncio.create_task(worker._read_events(reader))
        return worker

    async def ready(self) -> None:
        """Wait until the model is loaded and has answered an example.

        Raises:
            UsageError, DataError: the worker cannot use the checkpoint.
            WorkerLostError: the worker ended.
        """
        await asyncio.shield(self._ready)

    async def answer(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return an answer or {"error": sentence} per request.

        Raises:
            WorkerLostError: the worker ended before it answered.
        """
        if self.ended.is_set() or self._process.stdin is None:
            raise WorkerLostError(self.end())
        number = next(self._numbers)
        future: asyncio.Future[list[dict[str, Any]]] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        line = json.dumps({"batch": number, "requests": list(requests)}) + "\n"
        with contextlib.suppress(ConnectionError):  # the future gets the error
            self._process.stdin.write(line.encode())
            await self._process.stdin.drain()
        return await future

    async def close(self, seconds: float = 0.0) -> None:
        """Give the worker `seconds` to answer what it has been sent, and end it."""
        if self._answers and seconds:
            await asyncio.wait(list(self._answers.values()), timeout=seconds)
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.ended.wait(), CLOSE_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self.ended.wait()

    def end(self) -> str:
        code = self._process.returncode
        ended = "was closed" if code is None else describe_exit(code)
        return str(self._error.get("error") or f"the worker {ended}{last_error(self._log)}")

    async def _read_events(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                event = json.loads(line)
                for record in event.get("records", ()):
                    self._receive(record)
                if "error" in event:
                    self._error = event
        finally:
            await self._process.wait()
            self.ended.set()
            kinds = {2: UsageError, 3: DataError}
            kind = kinds.get(self._error.get("exit_code", 1), WorkerLostError)
            if not self._ready.done():
                self._ready.set_exception(kind(self.end()))
                self._ready.exception()  # read, so that asyncio does not report it
            for future in self._answers.values():
                if not future.done():
                    future.set_exception(WorkerLostError(self.end()))

    def _receive(self, record: Mapping[str, Any]) -> None:
        if "ready" in record:
            self.info = record["ready"]
            self._ready.set_result(None)
            return
        future = self._answers.pop(record["batch"], None)
        if future is not None and not future.done():
            future.set_result(record["answers"])
