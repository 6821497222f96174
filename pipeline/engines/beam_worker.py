"""Beam's Python workers, forked from one process that has imported what they need.

    python -m pipeline.engines.beam_worker

is that process, a pool's fork server. It takes JSON lines on standard input, and says on standard output what becomes of its children:

    in   {"start": worker id, "control": address}     {"signal": worker id, "number": 15}
    out  {"started": worker id, "pid": n}             {"ended": worker id, "code": return code, "unit": what it was at,
                                                       "begun": whether the engine had given it work}

Starting a worker this way takes a few milliseconds, where importing Beam takes more than a second, and an engine asks for new workers
with every pipeline. The fork server never starts a thread, so that forking is safe. When the pool goes, its input ends and it
kills what it has started; when it is killed itself, the kernel kills its children. It writes nothing to a disk, so that nothing
is left behind however all of them end: a worker tells its unit in memory that it shares with the fork server.
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

from pipeline.core.processes import PARENT_PID, die_with_parent

PRELOADED = ("apache_beam.runners.worker.sdk_worker", "pyarrow.compute", "pipeline.engines.fan_out")
POLL_SECONDS = 0.05
NOTE_BYTES = 256
_note: mmap.mmap | None = (
    None  # of this worker: its unit, and a byte for whether it has begun; none where no fork server has forked it
)


def tell_unit(name: str) -> None:
    """Note the unit that this worker is at, if a pool wants to know: for the sentence about a worker that was killed."""
    if _note is not None:
        _note[:NOTE_BYTES] = name.encode()[:NOTE_BYTES].ljust(NOTE_BYTES, b"\0")


def _tell_begun() -> None:
    if _note is not None:
        _note[NOTE_BYTES] = 1


def work(control: str, worker_id: str) -> None:
    """Serve the engine at `control` until it closes the channel."""
    import grpc
    from apache_beam.runners.worker.sdk_worker import SdkHarness

    class Harness(SdkHarness):  # type: ignore[misc]
        """Says when the engine gives it work: then the engine sees for itself whether it lives."""

        def _request_process_bundle(self, request: Any) -> None:
            _tell_begun()
            super()._request_process_bundle(request)

    form = f"%(asctime)s worker {worker_id} %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, format=form, force=True)
    # An engine that has finished hangs up while Beam's threads still listen to it; each would tell so by a traceback.
    logging.getLogger("apache_beam.runners.worker.data_plane").setLevel(logging.CRITICAL)
    tell = threading.excepthook
    threading.excepthook = lambda args: None if isinstance(args.exc_value, grpc.RpcError) else tell(args)
    with contextlib.suppress(grpc.RpcError):  # the engine is gone, or has no more work for us
        Harness(control, worker_id=worker_id).run()


@dataclass
class Child:
    """A worker, and the memory in which it notes the unit that it is at, and that it has begun."""

    worker_id: str
    note: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, NOTE_BYTES + 1))

    def ended(self, code: int) -> dict[str, Any]:
        unit = self.note[:NOTE_BYTES].rstrip(b"\0").decode(errors="ignore")
        return {"ended": self.worker_id, "code": code, "unit": unit, "begun": bool(self.note[NOTE_BYTES])}


class ForkServer:
    """The loop of the process that forks workers."""

    def __init__(self) -> None:
        self._children: dict[int, Child] = {}
        self._pending = b""

    def run(self) -> None:
        parent = os.getppid()
        try:
            # The input would stay open if the pool's process had forked another that outlives it.
            while self._listen() and os.getppid() == parent:
                self._reap()
        finally:
            for pid in self._children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _listen(self) -> bool:
        """Do what the pool asks for; false when it is gone."""
        if not select.select([0], [], [], POLL_SECONDS)[0]:
            return True
        chunk = os.read(0, 1 << 16)
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if "start" in request:
                self._start(request)
            else:
                for pid, child in self._children.items():
                    if child.worker_id == request["signal"]:
                        os.kill(pid, request["number"])
        return bool(chunk)

    def _start(self, request: dict[str, Any]) -> None:
        parent, child = os.getpid(), Child(request["start"])
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
                os._exit(code)  # threads of gRPC that wait for an engine that has gone must not keep us
        self._children[pid] = child
        _say({"started": child.worker_id, "pid": pid})

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            child = self._children.pop(pid)
            _say(child.ended(os.waitstatus_to_exitcode(status)))
            child.note.close()


def _become_worker(parent: int, child: Child, control: str) -> None:
    global _note
    _note = child.note
    os.environ[PARENT_PID] = str(parent)
    die_with_parent()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)  # the pipe is for the fork server's words alone
    work(control, child.worker_id)


def _say(event: dict[str, Any]) -> None:
    os.write(1, json.dumps(event).encode() + b"\n")


def main() -> None:
    import importlib

    for name in PRELOADED:
        importlib.import_module(name)
    ForkServer().run()


if __name__ == "__main__":
    from pipeline.engines import beam_worker

    beam_worker.main()  # of the module that units import, so that `tell_unit` is the same
