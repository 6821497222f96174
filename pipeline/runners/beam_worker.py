"""Beam's Python workers, forked from one process that has imported their modules.

    python -m cloze.pipeline.runners.beam_worker

runs a pool's fork server. It reads JSON lines from standard input and writes events of its children
to standard output:

    in   {"start": worker id, "control": address}     {"signal": worker id, "number": 15}
    out  {"started": worker id, "pid": n}
         {"ended": worker id, "code": return code, "unit": last unit, "got_work": got work or not}

Forking a worker takes a few milliseconds, importing Beam more than a second, and an engine requests
new workers for every pipeline. The fork server never starts a thread, so forking is safe. When the
pool ends, the fork server's input closes and it kills its children; when the fork server is killed,
the kernel kills them. It writes nothing to disk, so no files remain: a worker records its unit in
memory shared with the fork server.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import select
import signal
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

from cloze.core.arrow import spare_pandas
from cloze.core.processes import PARENT_PID, die_with_parent

PRELOADED = (
    "apache_beam.runners.worker.sdk_worker",
    "pyarrow.compute",
    "cloze.pipeline.runners.fan_out",
)
POLL_SECONDS = 0.05
NOTE_BYTES = 256
# of this worker: its unit, and a byte for whether it got work; None without a fork server
_note: mmap.mmap | None = None


def record_current_unit(name: str) -> None:
    """Record the current unit of this worker, for the pool's message if the worker is killed."""
    if _note is not None:
        _note[:NOTE_BYTES] = name.encode()[:NOTE_BYTES].ljust(NOTE_BYTES, b"\0")


def quiet_hang_ups() -> None:
    """Suppress Beam's traceback when the other end of a stream has hung up.

    A worker listens to an engine that has finished, an engine to a worker that was stopped or
    killed. The pool itself reports the death of a worker.
    """
    import grpc

    logging.getLogger("apache_beam.runners.worker.data_plane").setLevel(logging.CRITICAL)
    previous_hook = threading.excepthook
    if getattr(previous_hook, "__name__", "") == "without_hang_ups":  # already installed
        return

    def without_hang_ups(args: threading.ExceptHookArgs) -> None:
        if not isinstance(args.exc_value, grpc.RpcError):
            previous_hook(args)

    threading.excepthook = without_hang_ups


def serve_worker(control: str, worker_id: str) -> None:
    """Serve the engine at `control` until it closes the channel."""
    import grpc
    from apache_beam.runners.worker.sdk_worker import SdkHarness

    class Harness(SdkHarness):  # type: ignore[misc]
        """Records that the engine gave it work: from then on the engine notices its death."""

        def _request_process_bundle(self, request: Any) -> None:
            if _note is not None:
                _note[NOTE_BYTES] = 1
            super()._request_process_bundle(request)

    log_format = f"%(asctime)s worker {worker_id} %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, format=log_format, force=True)
    quiet_hang_ups()
    with contextlib.suppress(grpc.RpcError):  # the engine has ended, or has no more work
        Harness(control, worker_id=worker_id).run()


@dataclass
class ForkedWorker:
    """A worker, and the shared memory in which it records its unit and whether it got work."""

    worker_id: str
    note: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, NOTE_BYTES + 1))

    def ended(self, code: int) -> dict[str, Any]:
        unit = self.note[:NOTE_BYTES].rstrip(b"\0").decode(errors="ignore")
        got_work = bool(self.note[NOTE_BYTES])
        return {"ended": self.worker_id, "code": code, "unit": unit, "got_work": got_work}


class ForkServer:
    """The loop of the process that forks workers."""

    def __init__(self) -> None:
        self._children: dict[int, ForkedWorker] = {}
        self._pending = b""

    def run(self) -> None:
        parent = os.getppid()
        try:
            # The input stays open if a child of the pool's process outlives it.
            while self._listen() and os.getppid() == parent:
                self._reap()
        finally:
            for pid in self._children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _listen(self) -> bool:
        """Handle the pool's requests; return False when the pool has ended."""
        if not select.select([0], [], [], POLL_SECONDS)[0]:
            return True
        chunk = os.read(0, 1 << 16)
        *messages, self._pending = (self._pending + chunk).split(b"\n")
        for message in messages:
            request = json.loads(message)
            if "start" in request:
                self._start(request)
            else:
                for pid, child in self._children.items():
                    if child.worker_id == request["signal"]:
                        os.kill(pid, request["number"])
        return bool(chunk)

    def _start(self, request: dict[str, Any]) -> None:
        parent, child = os.getpid(), ForkedWorker(request["start"])
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _become_worker(parent, child, request["control"])
                code = 0
            except BaseException:
                logging.exception("worker %s failed", child.worker_id)
            finally:
                logging.shutdown()
                sys.stderr.flush()
                os._exit(code)  # gRPC threads that wait for a lost engine must not block the exit
        self._children[pid] = child
        _send({"started": child.worker_id, "pid": pid})

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            child = self._children.pop(pid)
            _send(child.ended(os.waitstatus_to_exitcode(status)))
            child.note.close()


def _become_worker(parent: int, child: ForkedWorker, control: str) -> None:
    global _note
    _note = child.note
    os.environ[PARENT_PID] = str(parent)
    die_with_parent()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)  # the pipe is only for the fork server's events
    serve_worker(control, child.worker_id)


def _send(event: dict[str, Any]) -> None:
    os.write(1, json.dumps(event).encode() + b"\n")


def main() -> None:
    import importlib

    for name in PRELOADED:
        importlib.import_module(name)
    spare_pandas()
    ForkServer().run()


if __name__ == "__main__":
    from cloze.pipeline.runners import beam_worker

    beam_worker.main()  # in the module that units import, for one state of `record_current_unit`
