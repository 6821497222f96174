"""The worker pool by itself: what it holds once it is left."""

from __future__ import annotations

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

from pipeline.core.processes import free_ports
from pipeline.engines.pool import WorkerPool


def pipes() -> set[str]:
    """The pipes that this process holds an end of."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(os.readlink(entry))
    return {name for name in found if name.startswith("pipe:")}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/self/fd is Linux's")
def test_a_pool_that_is_left_holds_no_pipe():
    """A process may start one pool after another: a pipe kept by each would end in `Too many open files`."""
    before = pipes()
    with WorkerPool() as pool:
        assert pipes() > before
    assert pipes() == before
    assert not pool.deaths


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


def test_the_engine_hears_of_a_worker_that_died_before_it_called():
    """An engine that nobody calls back waits without end."""
    (port,) = free_ports(1)
    with WorkerPool() as pool, grpc.insecure_channel(pool.address) as channel:
        before = set(psutil.Process().children(recursive=True))
        stub = beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel)
        endpoint = endpoints_pb2.ApiServiceDescriptor(url=f"localhost:{port}")
        request = beam_fn_api_pb2.StartWorkerRequest(worker_id="the first", control_endpoint=endpoint)
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
