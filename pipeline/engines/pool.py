"""A worker pool: starts Beam's Python workers where an engine asks for them (Beam's EXTERNAL environment).

In the stage's process it serves the local and the embedded engines. As a program, beside each Flink task manager:

    python -m pipeline.engines.pool --address HOST:PORT

Beam's own `worker_pool_main` starts whichever `python` comes first in PATH, writes the workers' output to a pipe that nobody
reads (a worker that says more than 64 KiB stops for ever), and does not notice a worker that dies. This one does not.

Flink waits without end for a worker that never calls, and Beam has no option that would end it. So where a worker dies before it
was given any work, the pool calls in its stead and hangs up: then Flink gives up the job, as with one that dies at work.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc

from pipeline.core.errors import UsageError
from pipeline.core.processes import MemoryWatch, die_with_parent, ending
from pipeline.engines.base import WorkerLost

STOP_SECONDS = 5.0  # between SIGTERM and SIGKILL
START_SECONDS = 60.0
HANG_UP_SECONDS = 30.0  # for the engine's address to be there
DEATH_NOTICE_SECONDS = 0.3  # within which a pool knows of a death
MEMORY = MemoryWatch()
_LOGGER = logging.getLogger(__name__)


@dataclass(slots=True)
class Worker:
    """A worker process."""

    number: int
    control: str
    pid: int = 0
    unwanted: bool = False  # it was told to stop
    started: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def death(self, code: int, unit: str) -> str:
        """A sentence's subject and verb: which worker, how it ended, and what it was doing."""
        at = f" while it did {unit}" if unit else ""
        return f"worker {self.number} (process {self.pid}) {ending(code, MEMORY.short())}{at}"


class WorkerPool(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):  # type: ignore[misc]
    """Serves at `address` while it is entered. `deaths` tells of workers that died though nobody had stopped them."""

    def __init__(self, address: str = "127.0.0.1:0") -> None:
        self.address = address
        self.deaths: list[str] = []
        self._workers: dict[str, Worker] = {}
        self._count = 0
        self._lock = threading.Lock()

    def __enter__(self) -> WorkerPool:
        # The port is ours alone: with gRPC's default, two pools on one port would share its calls at random.
        self._server = grpc.server(ThreadPoolExecutor(max_workers=16), options=[("grpc.so_reuseport", 0)])
        beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(self, self._server)
        try:
            port = self._server.add_insecure_port(self.address)
        except RuntimeError:
            port = 0
        if not port:
            raise UsageError(f"the worker pool cannot listen at {self.address}; choose another address, or end who holds it")
        self.address = f"{self.address.rpartition(':')[0]}:{port}"
        # In a session of its own: Ctrl-C is meant for this process, which then stops the workers; else they would seem to have died.
        self._fork_server = subprocess.Popen(
            [sys.executable, "-m", "pipeline.engines.beam_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, name="cloze-pool", daemon=True)
        self._listener.start()
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.stop(0)
        with self._lock:
            workers = dict(self._workers)
        self._stop(workers, STOP_SECONDS if error is None else 0)
        assert self._fork_server.stdin is not None
        with suppress(OSError):
            self._fork_server.stdin.close()
        try:
            self._fork_server.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._fork_server.kill()
            self._fork_server.wait()
        self._listener.join()
        assert self._fork_server.stdout is not None
        self._fork_server.stdout.close()

    def raise_if_dead(self) -> None:
        """Raises: WorkerLost: a worker has died since the last call."""
        if self.deaths:
            deaths, self.deaths = self.deaths, []
            raise WorkerLost(f"{deaths[0]}; run again to go on: what is finished is kept")

    def StartWorker(self, request: Any, context: Any) -> Any:
        with self._lock:
            number, self._count = self._count, self._count + 1
            url = request.control_endpoint.url
            worker = self._workers[request.worker_id] = Worker(number, url)
        self._ask({"start": request.worker_id, "control": url})
        if not worker.started.wait(START_SECONDS):
            return beam_fn_api_pb2.StartWorkerResponse(error=f"no worker started within {START_SECONDS:g} seconds")
        _LOGGER.info("worker %d is process %d, for %s", number, worker.pid, url)
        return beam_fn_api_pb2.StartWorkerResponse()

    def StopWorker(self, request: Any, context: Any) -> Any:
        worker = self._workers.get(request.worker_id)  # none that has ended by itself
        if worker is not None:
            self._stop({request.worker_id: worker}, STOP_SECONDS)
        return beam_fn_api_pb2.StopWorkerResponse()

    def _ask(self, request: dict[str, Any]) -> None:
        with suppress(OSError), self._lock:  # its death is told by the listener
            assert self._fork_server.stdin is not None
            self._fork_server.stdin.write(json.dumps(request).encode() + b"\n")
            self._fork_server.stdin.flush()

    def _listen(self) -> None:
        """What the fork server says, until it ends."""
        assert self._fork_server.stdout is not None
        for line in self._fork_server.stdout:
            event = json.loads(line)
            if "started" in event:
                worker = self._workers[event["started"]]
                worker.pid = event["pid"]
                worker.started.set()
            else:
                name, worker = event["ended"], self._workers.pop(event["ended"])
                if event["code"] and not event["begun"] and not worker.unwanted:
                    threading.Thread(target=_hang_up, args=(worker.control, name), name="cloze-hang-up", daemon=True).start()
                self._note_end(worker, event["code"], event["unit"])
        code = self._fork_server.wait()
        for worker in list(self._workers.values()):
            self._note_end(worker, code)

    def _note_end(self, worker: Worker, code: int, unit: str = "") -> None:
        if code and not worker.unwanted:
            self.deaths.append(worker.death(code, unit))
            _LOGGER.error("%s", self.deaths[-1])
        worker.ended.set()

    def _stop(self, workers: dict[str, Worker], grace: float) -> None:
        """Let workers that have nothing left to do end by themselves for half of the time, then SIGTERM, then SIGKILL."""
        living = {name: worker for name, worker in workers.items() if not worker.ended.is_set()}
        for worker in living.values():
            worker.unwanted = True
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            for name, worker in living.items():
                if number is not None and not worker.ended.is_set():
                    self._ask({"signal": name, "number": int(number)})
            deadline = time.monotonic() + (grace / 2 if number != signal.SIGKILL else STOP_SECONDS)
            for worker in living.values():
                worker.ended.wait(max(0.0, deadline - time.monotonic()))


def _hang_up(control: str, worker_id: str) -> None:
    """Call the engine as the worker of that id, and end the call at once."""
    from apache_beam.runners.worker.worker_id_interceptor import WorkerIdInterceptor

    with grpc.insecure_channel(control) as channel, suppress(grpc.RpcError):
        stub = beam_fn_api_pb2_grpc.BeamFnControlStub(grpc.intercept_channel(channel, WorkerIdInterceptor(worker_id)))
        for _ in stub.Control(iter(()), timeout=HANG_UP_SECONDS, wait_for_ready=True):
            break  # the engine has taken it for its worker, and given it work


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline.engines.pool", description="Start Beam workers on request.")
    parser.add_argument("--address", default="localhost:50000", help="HOST:PORT to listen at (default: %(default)s)")
    address = parser.parse_args(arguments).address
    die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s pool %(levelname)s: %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        with WorkerPool(address) as pool:
            _LOGGER.info("listening at %s", pool.address)
            stop.wait()
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
