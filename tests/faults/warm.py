"""`cloze` and its ranks as forks of one process that has imported everything: what is killed a hundred times must start in a moment.

    python -m tests.faults.warm SOCKET    the server
    SOCKET.python -m model.worker JOB     what a `cloze` of the server's starts instead of Python: it asks the server for a rank, and
                                          stands for it: signals to it go on to the rank, and its death is the rank's

Everything else is the program's own: the verb, the launcher, the locks, the ranks' processes and how they talk to each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

MARK = "CLOZE_TEST_MARK"  # a file whose only byte says what rank 0 does
FDS = ("CLOZE_EVENTS_FD", "CLOZE_PULSE_FD")
CLIENT = """#!{python} -IS
import ctypes, json, os, signal, socket, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
server = socket.socket(socket.AF_UNIX)
server.connect({path!r})
fds = [1, 2, *(int(os.environ[name]) for name in {fds!r})]
socket.send_fds(server, [json.dumps(["rank", sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()], fds)
signal.signal(signal.SIGTERM, lambda *_: server.send(b"T"))
if os.getppid() != int(os.environ["CLOZE_PARENT_PID"]):
    os._exit(9)
told = b""
while not told.endswith(b"."):
    more = server.recv(16)
    if not more:
        os.kill(os.getpid(), signal.SIGKILL)
    told += more
os._exit(int(told.split()[-1][:-1]))
"""


def mark(what: str) -> None:
    """Say what this rank does, where it is the first."""
    if os.environ.get("RANK") == "0" and MARK in os.environ:
        Path(os.environ[MARK]).write_text(what)


def _marked() -> None:
    """Have the trainer say it."""
    from model.train import loop

    aside, steps = loop.Clock.aside, loop._Loop._steps

    @contextlib.contextmanager
    def telling(self: Any, what: str) -> Iterator[None]:
        mark(what)
        try:
            with aside(self, what):
                yield
        finally:
            mark("step")

    def stepping(self: Any) -> None:
        mark("step")
        steps(self)

    loop.Clock.aside, loop._Loop._steps = telling, stepping  # type: ignore[method-assign, assignment]


def _obey(connection: socket.socket) -> None:
    """Die with whoever asked for this process, and be told what it is told."""
    while connection.recv(1):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGKILL)


def _child(connection: socket.socket, fds: Sequence[int], asked: Sequence[Any], path: str) -> int:
    """The fork: a verb, or a rank."""
    kind, arguments, place, environment = asked
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, fd in enumerate(fds[:2], start=1):
        os.dup2(fd, number)
    os.environ.clear()
    os.environ.update(environment)
    os.environ |= {name: str(fd) for name, fd in zip(FDS, fds[2:], strict=False)}
    os.environ.pop("CLOZE_PARENT_PID", None)
    os.chdir(place)
    threading.Thread(target=_obey, args=(connection,), daemon=True).start()
    if kind == "verb":
        from flows import cli

        sys.executable = f"{path}.python"
        return cli.main(arguments)
    from pipeline.core import worker

    sys.argv = arguments[1:]
    package = arguments[1].removesuffix(".worker")
    if package == "model":
        _marked()
    return worker.main(package)


def serve(path: str) -> None:
    import apache_beam
    import torch

    import flows.commands.corpus
    import flows.commands.dataset
    import flows.commands.pretrain
    import flows.commands.vocab
    import flows.launchers.head
    import flows.views.live
    import model.train.engines.torch
    import model.train.pretraining
    import pipeline.corpus.stage
    import pipeline.dataset.stage
    import pipeline.vocab.stage

    del apache_beam, flows, model, pipeline
    torch.set_num_threads(1)
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.zeros(2)
    torch.optim.AdamW([weight]).step()  # imports what takes longest
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(16)
    while True:
        connection, _ = server.accept()
        content, fds, *_ = socket.recv_fds(connection, 1 << 20, 8)
        if not content:
            connection.close()
            continue
        pid = os.fork()
        if not pid:
            server.close()
            code = 1
            try:
                code = _child(connection, fds, json.loads(content), path)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                with contextlib.suppress(OSError):
                    connection.send(f" {code}.".encode())
                os._exit(code)
        with contextlib.suppress(OSError):  # who asked may have been killed meanwhile; the child finds that out, too
            connection.send(f"{pid} ".encode())
        connection.close()
        for fd in fds:
            os.close(fd)


class Verb:
    """A `cloze` that runs."""

    def __init__(self, path: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(path)
        with log.open("wb") as output:
            asked = ["verb", list(arguments), os.getcwd(), {**os.environ, **environment}]
            socket.send_fds(self._connection, [json.dumps(asked).encode()], [output.fileno(), output.fileno()])
        told = b""
        while not told.endswith(b" "):
            told += self._connection.recv(1)
        self.pid = int(told)

    def wait(self) -> int:
        """Its exit code; -9: it was killed."""
        told = b""
        while not told.endswith(b"."):
            more = self._connection.recv(16)
            if not more:
                return -9
            told += more
        return int(told.strip(b" ."))

    def ended(self) -> bool:
        return not psutil.pid_exists(self.pid)


class Warm:
    """The server; a context manager."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "warm")
        client = Path(f"{self.path}.python")
        client.write_text(CLIENT.format(python=sys.executable, path=self.path, fds=FDS))
        client.chmod(0o755)
        self._process = subprocess.Popen([sys.executable, "-m", "tests.faults.warm", self.path])

    def __enter__(self) -> Warm:
        while not Path(self.path).exists():
            assert self._process.poll() is None
            time.sleep(0.05)
        time.sleep(0.2)
        return self

    def __exit__(self, *_: object) -> None:
        for child in psutil.Process(self._process.pid).children():
            child.kill()
        self._process.kill()
        self._process.wait()

    def cloze(self, *arguments: object, log: Path, **environment: str) -> Verb:
        return Verb(self.path, [str(argument) for argument in arguments], log, environment)

    def alone(self) -> None:
        """Wait until nothing that was forked lives."""
        while self.forks():
            time.sleep(0.005)

    def forks(self) -> list[int]:
        """The processes that were forked: verbs and ranks."""
        return [child.pid for child in psutil.Process(self._process.pid).children()]


if __name__ == "__main__":
    serve(sys.argv[1])
