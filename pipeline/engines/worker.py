"""Beam's Python workers, forked from one process that has imported what they need.

    python -m pipeline.engines.worker DIRECTORY

is that process, a pool's nursery. It takes JSON lines on standard input, and says on standard output what becomes of its children:

    in   {"start": worker id, "control": address, "unit_file": path}     {"signal": worker id, "number": 15}
    out  {"started": worker id, "pid": n}                                {"ended": worker id, "code": return code}

Starting a worker this way takes a few milliseconds, where importing Beam takes more than a second, and an engine asks for new workers
with every pipeline. The nursery never starts a thread, so that forking is safe. When the pool goes, its input ends and it
kills what it has started, and removes the pool's temporary DIRECTORY; when it is killed itself, the kernel kills its children.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import shutil
import signal
import sys
from typing import Any

from pipeline.engines.processes import PARENT_PID, die_with_parent

UNIT_FILE = "CLOZE_UNIT_FILE"
PRELOADED = ("apache_beam.runners.worker.sdk_worker", "pyarrow.compute", "pipeline.transforms.runner")
POLL_SECONDS = 0.05


def tell_unit(name: str) -> None:
    """Note the unit that this worker is at, if a pool wants to know: for the sentence about a worker that was killed."""
    path = os.environ.get(UNIT_FILE)
    if path:
        try:
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(name)
        except OSError:  # a full disk must not stop a worker for the sake of a message
            os.environ.pop(UNIT_FILE, None)


def work(control: str, worker_id: str) -> None:
    """Serve the engine at `control` until it closes the channel."""
    import grpc
    from apache_beam.runners.worker.sdk_worker import SdkHarness

    form = f"%(asctime)s worker {worker_id} %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, format=form, force=True)
    with contextlib.suppress(grpc.RpcError):  # the engine is gone, or has no more work for us
        SdkHarness(control, worker_id=worker_id).run()


class Nursery:
    """The loop of the process that forks."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._children: dict[int, str] = {}
        self._pending = b""

    def run(self) -> None:
        try:
            while self._listen():
                self._reap()
        finally:
            for pid in self._children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(self._directory, ignore_errors=True)

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
                for pid, worker_id in self._children.items():
                    if worker_id == request["signal"]:
                        os.kill(pid, request["number"])
        return bool(chunk)

    def _start(self, request: dict[str, Any]) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _become_worker(parent, request)
                code = 0
            except BaseException:
                logging.exception("worker %s failed", request["start"])
            finally:
                logging.shutdown()
                sys.stderr.flush()
                os._exit(code)  # threads of gRPC that wait for an engine that has gone must not keep us
        self._children[pid] = request["start"]
        _say({"started": request["start"], "pid": pid})

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            _say({"ended": self._children.pop(pid), "code": os.waitstatus_to_exitcode(status)})


def _become_worker(parent: int, request: dict[str, Any]) -> None:
    os.environ |= {PARENT_PID: str(parent), UNIT_FILE: request["unit_file"]}
    die_with_parent()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)  # the pipe is for the nursery's words alone
    work(request["control"], request["start"])


def _say(event: dict[str, Any]) -> None:
    os.write(1, json.dumps(event).encode() + b"\n")


def main() -> None:
    import importlib

    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the stage, which then closes our input
        signal.signal(number, signal.SIG_IGN)
    for name in PRELOADED:
        importlib.import_module(name)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    Nursery(sys.argv[1]).run()


if __name__ == "__main__":
    main()
