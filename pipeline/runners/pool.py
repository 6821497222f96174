"""A worker pool: starts Beam's Python workers on request (Beam's EXTERNAL environment).

In the stage's process the pool serves the local and the embedded engines. As a program it runs next
to each Flink task manager:

    python -m cloze.pipeline.runners.pool --address HOST:PORT

Beam's own `worker_pool_main` starts the first `python` in PATH, and does not notice a dead worker.
It writes the workers' output to a pipe that nobody reads (a worker blocks forever after 64 KiB).
This pool has none of these faults.

A worker runs any code that its caller sends, as the user of the pool. So the pool starts workers
only for callers that send its secret, as a parameter of the EXTERNAL environment. A stage's pool
draws its own secret; the pools of a cluster and their submitters share one.

Flink waits without limit for a worker that never calls, and Beam has no timeout for it. So if a
worker dies before it gets work, the pool calls in its place and hangs up. Flink then fails the job,
as after the death of a busy worker.
"""

from __future__ import annotations

import argparse
import hmac
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc

from cloze.core.accounts import open_private
from cloze.core.errors import UsageError
from cloze.core.identity import difference, identity
from cloze.core.places import cache_directory
from cloze.core.processes import MemoryWatch, describe_exit, die_with_parent, wait_until
from cloze.pipeline.runners.base import CONTINUE, WorkerLostError
from cloze.pipeline.runners.beam_worker import quiet_hang_ups

STOP_SECONDS = 5.0  # between SIGTERM and SIGKILL
START_SECONDS = 60.0
HANG_UP_SECONDS = 30.0  # for the engine's address to become reachable
DEATH_NOTICE_SECONDS = 0.3  # maximum delay until a pool notices a death
# environment variable with the secret of a cluster's pools, if their users share no cache directory
SECRET = "CLOZE_POOL_SECRET"
MEMORY = MemoryWatch()
_LOGGER = logging.getLogger(__name__)


@dataclass(slots=True)
class PoolWorker:
    """A worker process."""

    number: int
    control: str
    caller: str  # who requested the worker, and may stop it
    pid: int  # until it has started, the fork server's
    stop_requested: bool = False  # the pool asked it to stop
    started: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def death(self, code: int, unit: str) -> str:
        """Describe the worker, its end and its unit, as subject and verb of a sentence."""
        during = f" while it did {unit}" if unit else ""
        end = describe_exit(code, MEMORY.short())
        return f"worker {self.number} (process {self.pid}) {end}{during}"


class WorkerPool(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):  # type: ignore[misc]
    """A gRPC server that listens at `address` while entered."""

    def __init__(self, address: str = "127.0.0.1:0", secret: str | None = None) -> None:
        self.address = address
        # parameters of the callers' EXTERNAL environment: the secret, drawn unless given, and the
        # program's identity. A worker of another version would mix its results in.
        self.params = worker_params(secret or secrets.token_hex(16))
        self.deaths: list[str] = []  # messages about workers that died without a stop request
        self._workers: dict[str, PoolWorker] = {}
        self._count = 0
        self._lock = threading.Lock()

    def __enter__(self) -> WorkerPool:
        quiet_hang_ups()
        # Not shared: with gRPC's default, two pools on one port would receive calls at random.
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=16), options=[("grpc.so_reuseport", 0)]
        )
        beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(self, self._server)
        try:
            port = self._server.add_insecure_port(self.address)
        except RuntimeError:
            port = 0
        if not port:
            raise UsageError(
                f"the worker pool cannot listen at {self.address}; choose another address, or end "
                f"the process that uses it"
            )
        self.address = f"{self.address.rpartition(':')[0]}:{port}"
        # In its own session: Ctrl-C is meant for this process, which then stops the workers;
        # otherwise they would count as dead.
        self._fork_server = subprocess.Popen(
            [sys.executable, "-m", "cloze.pipeline.runners.beam_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, name="cloze-pool", daemon=True)
        self._listener.start()
        self._server.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
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
        """Raise WorkerLostError if a worker has died since the last call."""
        if self.deaths:
            deaths, self.deaths = self.deaths, []
            raise WorkerLostError(f"{deaths[0]}; {CONTINUE}")

    def StartWorker(self, request: Any, context: Any) -> Any:
        if refusal := self._refusal(request.params, context.peer()):
            _LOGGER.warning("%s", refusal)
            return beam_fn_api_pb2.StartWorkerResponse(error=refusal)
        with self._lock:
            number, self._count = self._count, self._count + 1
            url = request.control_endpoint.url
            worker = PoolWorker(number, url, context.peer(), self._fork_server.pid)
            self._workers[request.worker_id] = worker
        self._request({"start": request.worker_id, "control": url})
        listens = self._listener.is_alive  # until the fork server ends
        wait_until(lambda: worker.started.is_set() or not listens(), START_SECONDS, 0.01)
        if not worker.started.is_set():
            if not listens() and not worker.ended.is_set():
                self._note_end(worker, self._fork_server.wait())
            return beam_fn_api_pb2.StartWorkerResponse(
                error=f"no worker started within {START_SECONDS:g} seconds"
            )
        _LOGGER.info("worker %d is process %d, for %s", number, worker.pid, url)
        return beam_fn_api_pb2.StartWorkerResponse()

    def _refusal(self, params: Any, caller: str) -> str:
        """Return why the caller gets no worker; empty: it gets one."""
        if not hmac.compare_digest(params["secret"].encode(), self.params["secret"].encode()):
            return (
                f"{caller} does not know the secret of this pool; set {SECRET} to the same text "
                f"for pools and submitters"
            )
        theirs = json.loads(params["program"] or "{}")
        if differs := difference(json.loads(self.params["program"]), theirs):
            name, here, there = differs
            return (
                f"the worker pool at {self.address} has {name} {here}, the command has {there}; "
                f"install the same for both and restart the pool"
            )
        return ""

    def StopWorker(self, request: Any, context: Any) -> Any:
        worker = self._workers.get(request.worker_id)  # None if the worker ended by itself
        # workers of other connections end when their engine hangs up
        if worker is not None and worker.caller == context.peer():
            self._stop({request.worker_id: worker}, STOP_SECONDS)
        return beam_fn_api_pb2.StopWorkerResponse()

    def _request(self, request: dict[str, Any]) -> None:
        with suppress(OSError), self._lock:  # the listener reports its death
            assert self._fork_server.stdin is not None
            self._fork_server.stdin.write(json.dumps(request).encode() + b"\n")
            self._fork_server.stdin.flush()

    def _listen(self) -> None:
        """Handle the fork server's events until it ends."""
        assert self._fork_server.stdout is not None
        for message in self._fork_server.stdout:
            event = json.loads(message)
            if "started" in event:
                worker = self._workers[event["started"]]
                worker.pid = event["pid"]
                worker.started.set()
            else:
                name, worker = event["ended"], self._workers.pop(event["ended"])
                if event["code"] and not event["got_work"] and not worker.stop_requested:
                    threading.Thread(
                        target=_hang_up,
                        args=(worker.control, name),
                        name="cloze-hang-up",
                        daemon=True,
                    ).start()
                self._note_end(worker, event["code"], event["unit"])
        code = self._fork_server.wait()
        for worker in list(self._workers.values()):
            self._note_end(worker, code)

    def _note_end(self, worker: PoolWorker, code: int, unit: str = "") -> None:
        if code and not worker.stop_requested:
            self.deaths.append(worker.death(code, unit))
            _LOGGER.error("%s", self.deaths[-1])
        worker.ended.set()

    def _stop(self, workers: dict[str, PoolWorker], grace: float) -> None:
        """Give idle workers half of the grace period to end, then send SIGTERM, then SIGKILL."""
        living = {name: worker for name, worker in workers.items() if not worker.ended.is_set()}
        for worker in living.values():
            worker.stop_requested = True
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            for name, worker in living.items():
                if number is not None and not worker.ended.is_set():
                    self._request({"signal": name, "number": int(number)})
            deadline = time.monotonic() + (grace / 2 if number != signal.SIGKILL else STOP_SECONDS)
            for worker in living.values():
                worker.ended.wait(max(0.0, deadline - time.monotonic()))


def _hang_up(control: str, worker_id: str) -> None:
    """Call the engine as the worker of that id, and end the call at once."""
    from apache_beam.runners.worker.worker_id_interceptor import WorkerIdInterceptor

    with grpc.insecure_channel(control) as channel, suppress(grpc.RpcError):
        stub = beam_fn_api_pb2_grpc.BeamFnControlStub(
            grpc.intercept_channel(channel, WorkerIdInterceptor(worker_id))
        )
        for _ in stub.Control(iter(()), timeout=HANG_UP_SECONDS, wait_for_ready=True):
            break  # the engine took it for its worker and gave it work


def worker_params(secret: str) -> dict[str, str]:
    """Return the parameters by which a pool knows a caller, and that both are the same program."""
    return {"secret": secret, "program": json.dumps(identity("core", "pipeline"))}


def shared_secret() -> str:
    """Return the secret of a cluster's pools, from the environment or a private file.

    Raises:
        UsageError: neither exists, and the file cannot be written.
    """
    if secret := os.environ.get(SECRET):
        return secret
    path = cache_directory() / "pool-secret"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            temporary = path.with_name(f"{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
            with open(temporary, "x", opener=open_private) as stream:
                stream.write(secrets.token_hex(16))
            try:
                # one of several concurrent writers wins, and no reader sees a partial file
                os.link(temporary, path)
            finally:
                temporary.unlink()
        return path.read_text().strip()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror}); set {SECRET} for pools and submitters"
        ) from error


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cloze.pipeline.runners.pool", description="Start Beam workers on request."
    )
    parser.add_argument(
        "--address", default="localhost:50000", help="HOST:PORT to listen at (default: %(default)s)"
    )
    address = parser.parse_args(arguments).address
    die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s pool %(levelname)s: %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        with WorkerPool(address, shared_secret()) as pool:
            _LOGGER.info("listening at %s", pool.address)
            stop.wait()
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
