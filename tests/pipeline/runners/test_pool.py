"""The worker pool by itself: what it holds once it is left."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc, endpoints_pb2

from cloze.core.processes import free_ports, wait_until
from cloze.pipeline.runners.base import WorkerLostError
from cloze.pipeline.runners.pool import SECRET, WorkerPool, shared_secret

Stub = beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub


def pipes() -> set[str]:
    """The pipes that this process holds an end of."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(os.readlink(entry))
    return {name for name in found if name.startswith("pipe:")}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/self/fd is Linux's")
def test_a_pool_that_is_left_holds_no_pipe():
    """A process may start one pool after another: a pipe kept by each would end in `Too many open
    files`.
    """
    before = pipes()
    with WorkerPool() as pool:
        assert pipes() > before
    assert pipes() == before
    assert not pool.deaths


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """One that all tests may ask, each for a worker of a name of its own."""
    with WorkerPool() as entered:
        yield entered


@pytest.fixture
def stub(pool: WorkerPool) -> Iterator[Stub]:
    with grpc.insecure_channel(pool.address) as channel:
        yield Stub(channel)


class Control(beam_fn_api_pb2_grpc.BeamFnControlServicer):
    """An engine's end of the workers' calls: notes who called, and that the call has ended."""

    def __init__(self) -> None:
        self.heard: queue.Queue[tuple[str, str]] = queue.Queue()

    def Control(self, responses: Iterator[Any], context: Any) -> Iterator[Any]:
        caller = dict(context.invocation_metadata())["worker_id"]
        self.heard.put(("called", caller))
        with suppress(grpc.RpcError):
            for _ in responses:
                pass
        self.heard.put(("hung up", caller))
        return iter(())


def test_the_engine_hears_of_a_worker_that_died_before_it_called(pool: WorkerPool, stub: Stub):
    """An engine that nobody calls back waits without end."""
    (port,) = free_ports(1)
    before = set(psutil.Process().children(recursive=True))
    endpoint = endpoints_pb2.ApiServiceDescriptor(url=f"localhost:{port}")
    request = beam_fn_api_pb2.StartWorkerRequest(
        worker_id="the first", control_endpoint=endpoint, params=pool.params
    )
    assert not stub.StartWorker(request, wait_for_ready=True).error
    (worker,) = set(psutil.Process().children(recursive=True)) - before
    worker.send_signal(signal.SIGKILL)
    control = Control()
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    beam_fn_api_pb2_grpc.add_BeamFnControlServicer_to_server(control, server)
    assert server.add_insecure_port(f"localhost:{port}")
    server.start()
    try:
        assert control.heard.get(timeout=60) == ("called", "the first")
        assert control.heard.get(timeout=60) == ("hung up", "the first")
    finally:
        server.stop(None).wait()
    assert len(pool.deaths) == 1
    assert "was killed" in pool.deaths[0]


@pytest.mark.parametrize("is_first", [True, False], ids=["before a start", "during a start"])
def test_a_fork_server_that_is_killed_is_a_lost_worker(is_first: bool):
    """Nobody waits a minute for a worker that it cannot start any more."""
    with WorkerPool() as pool, grpc.insecure_channel(pool.address) as channel:
        endpoint = endpoints_pb2.ApiServiceDescriptor(url="localhost:1")
        request = beam_fn_api_pb2.StartWorkerRequest(
            worker_id="late", control_endpoint=endpoint, params=pool.params
        )
        server = pool._fork_server
        if is_first:
            server.kill()
            server.wait()
        else:  # it imports Beam, or stands still
            server.send_signal(signal.SIGSTOP)
        answer = Stub(channel).StartWorker.future(request, timeout=30, wait_for_ready=True)
        if not is_first:
            assert wait_until(lambda: bool(pool._workers), 10)
            server.kill()
        assert "no worker started" in answer.result().error
        with pytest.raises(WorkerLostError, match=rf"process {server.pid}\) was killed"):
            pool.raise_if_dead()


def test_only_who_knows_the_secret_gets_a_worker(pool: WorkerPool, stub: Stub):
    """A worker runs the functions that its caller sends it, as the user of the pool."""
    before = set(psutil.Process().children(recursive=True))
    endpoint = endpoints_pb2.ApiServiceDescriptor(url="localhost:9")
    for params in ({}, {"secret": ""}, {"secret": "guessed"}, WorkerPool().params):
        request = beam_fn_api_pb2.StartWorkerRequest(
            worker_id="theirs", control_endpoint=endpoint, params=params
        )
        assert (
            "does not know the secret of this pool"
            in stub.StartWorker(request, wait_for_ready=True).error
        )
    assert set(psutil.Process().children(recursive=True)) == before


@pytest.mark.parametrize(
    "change",
    [{"code": "0123456789ab"}, {"trafilatura": "0.0"}, {"python": "2.7"}, None],
    ids=["code", "package", "python", "none sent"],
)
def test_a_caller_of_another_version_gets_no_worker(
    pool: WorkerPool, stub: Stub, change: dict[str, str] | None
):
    """Its results would stand among those of this version, and nobody would see it."""
    before = set(psutil.Process().children(recursive=True))
    params = {"secret": pool.params["secret"]}
    if change is not None:
        params["program"] = json.dumps(json.loads(pool.params["program"]) | change)
    request = beam_fn_api_pb2.StartWorkerRequest(
        worker_id="theirs",
        control_endpoint=endpoints_pb2.ApiServiceDescriptor(url="localhost:9"),
        params=params,
    )
    error = stub.StartWorker(request, wait_for_ready=True).error
    assert "install the same for both and restart the pool" in error
    assert next(iter(change or {"apache-beam": ""})) in error
    assert set(psutil.Process().children(recursive=True)) == before


def test_a_stranger_stops_no_worker(pool: WorkerPool, stub: Stub):
    (port,) = free_ports(1)
    before = set(psutil.Process().children(recursive=True))
    endpoint = endpoints_pb2.ApiServiceDescriptor(url=f"localhost:{port}")
    request = beam_fn_api_pb2.StartWorkerRequest(
        worker_id="ours", control_endpoint=endpoint, params=pool.params
    )
    assert not stub.StartWorker(request, wait_for_ready=True).error
    (worker,) = set(psutil.Process().children(recursive=True)) - before
    stop = beam_fn_api_pb2.StopWorkerRequest(worker_id="ours")
    with grpc.insecure_channel(
        pool.address, options=[("grpc.use_local_subchannel_pool", 1)]
    ) as strange:
        Stub(strange).StopWorker(stop, wait_for_ready=True)
    assert worker.is_running()
    stub.StopWorker(stop)
    assert not worker.is_running() or worker.wait(timeout=60) is not None


def test_pools_of_a_cluster_share_a_secret_that_only_their_user_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = shared_secret()
    assert shared_secret() == first
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert (file.stat().st_mode & 0o077, file.read_text().strip()) == (0, first)
    monkeypatch.setenv(SECRET, "chosen")
    assert shared_secret() == "chosen"
