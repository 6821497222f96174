"""A Python that has imported the libraries: processes that tests start come out of it in a moment
instead of importing torch anew.

    [python(), "-m", "cloze.model.worker", job]    as `[sys.executable, …]`, and what that process
                                                   starts is as warm
    python -m tests.warm_forks DIRECTORY           the nursery, of which they are forks

`DIRECTORY/python` stands for the interpreter. It hands its arguments, environment, working
directory and open files to the nursery, which forks; signals go on to the fork, its end is theirs,
and who kills the one kills the other. A fork has imported libraries alone, nothing
of the program: what the program forgets to import is missing there, too. What is not the program's
own is run by the interpreter itself.

A fork differs from a fresh process in this: its parent is the nursery; it is stopped (SIGSTOP) by
nobody who stops what stands for it; it has the nursery's hash seed, and whatever libraries read
from the environment when they are loaded (OMP_NUM_THREADS).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from cloze.core.processes import PARENT_PID
from tests.warm_forks import OURS

REPOSITORY = Path(__file__).resolve().parent.parent
ENTRY = "from cloze.flows.cli import entry; entry()"
STARTED = (*OURS, "pytest", "prefect", "uvicorn")  # with `-m`
SHARED = "CLOZE_TEST_NURSERY"
FORWARDED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")
CLIENT = r"""#!{python} -IS
import os, sys
words = sys.argv[1:]
warm = words[:1] == ["-m"] and words[1].split(".")[0] in {started!r}
if words[:1] == ["-c"]:
    import re
    warm = re.search(r"\b(?:{alternatives})\b", words[1])
if not warm or "PYTHONHASHSEED" in os.environ or "LD_PRELOAD" in os.environ:
    os.execv({python!r}, [{python!r}, *words])
import ctypes, json, signal, socket, struct
parent = os.environ.get({parent!r})
if parent:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(parent):
        os.kill(os.getpid(), signal.SIGKILL)
server = socket.socket(socket.AF_UNIX)
try:
    server.connect({socket!r})
except OSError:  # the nursery has died, which ought to cost time alone
    os.execv({python!r}, [{python!r}, *words])
fds = sorted(int(name) for name in os.listdir("/proc/self/fd"))
fds = [fd for fd in fds if fd != server.fileno() and os.path.lexists(f"/proc/self/fd/{{fd}}")]
asked = json.dumps([words, os.getcwd(), dict(os.environ), fds]).encode()
socket.send_fds(server, [struct.pack("!I", len(asked))], fds)
server.sendall(asked)
for name in {forwarded!r}:
    if signal.getsignal(getattr(signal, name)) is not signal.SIG_IGN:
        signal.signal(getattr(signal, name), lambda number, _: server.send(bytes([number])))
told = b""
while len(told) < 4:
    more = server.recv(4 - len(told))
    if not more:
        os.kill(os.getpid(), signal.SIGKILL)
    told += more
(code,) = struct.unpack("!i", told)
if code < 0:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@functools.cache
def nursery() -> Nursery:
    """This test process's; it begins when it is first asked for, and ends with the process."""
    return Nursery()


def python() -> str:
    """What to start instead of `sys.executable`."""
    return nursery().python()


@contextlib.contextmanager
def executable() -> Iterator[None]:
    """Meanwhile what this process starts as its own Python is a fork, such as a build's workers."""
    kept, sys.executable = sys.executable, python()
    try:
        yield
    finally:
        sys.executable = kept


def real(pid: int) -> int:
    """The process that does the work: what this one stands for, or itself."""
    return nursery().fork(pid) or pid


def family(pid: int) -> list[psutil.Process]:
    """A process and its descendants, where some of them only stand for forks."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            found.append(one)
            if (fork := nursery().fork(one.pid)) is not None:
                found += family(fork)
    return found


def kill(process: subprocess.Popen[Any]) -> None:
    """SIGKILL to a process and all that descends from it; when this returns, none of them lives."""
    victims = family(process.pid)
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
    process.wait()
    _, left = psutil.wait_procs(victims, timeout=120)
    assert not left


class Nursery:
    """The process of which the others are forks, seen from the tests.

    One that a process above has started serves all tests below it, if `SHARED` names it.
    """

    def __init__(self) -> None:
        if shared := os.environ.get(SHARED):
            pid, directory = shared.split(":", 1)
            self._directory, self._pid = Path(directory), int(pid)
        else:
            self._start()

    def python(self) -> str:
        """What stands for the interpreter, once the libraries are imported."""
        while not (self._directory / "socket").exists():
            state = psutil.Process(self._pid).status()
            assert state != psutil.STATUS_ZOMBIE, (self._directory / "log").read_text()
            time.sleep(0.02)
        return str(self._directory / "python")

    @property
    def environment(self) -> dict[str, str]:
        """What makes the tests of a process share this nursery."""
        return {SHARED: f"{self._pid}:{self._directory}"}

    def _start(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="cloze-warm-")
        atexit.register(directory.cleanup)
        self._directory = path = Path(directory.name)
        client = path / "python"
        client.write_text(
            CLIENT.format(
                python=sys.executable,
                started=STARTED,
                alternatives="|".join(OURS),
                parent=PARENT_PID,
                socket=str(path / "socket"),
                forwarded=FORWARDED,
            )
        )
        client.chmod(0o755)
        kept = {
            name: value
            for name, value in os.environ.items()
            if name.split("_")[0] not in ("PREFECT", "MLFLOW", "CLOZE", "PYTHONPATH")
        }
        more = {
            "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MLFLOW_DISABLE_TELEMETRY": "true",
            "PREFECT_HOME": str(path / "prefect"),
        }  # fmt: skip
        leash, self._leash = os.pipe()  # closed by our end, however we end
        with (path / "log").open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm_forks", directory.name, str(leash)],
                cwd=REPOSITORY,
                env={**kept, **more},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[leash],
                start_new_session=True,
            )
        self._pid = self._process.pid
        os.close(leash)
        atexit.register(self._end)

    def forks(self) -> list[int]:
        """The processes that live, the oldest first."""
        found = psutil.Process(self._pid).children()
        return [child.pid for child in sorted(found, key=psutil.Process.create_time)]

    def fork(self, pid: int) -> int | None:
        """What this process stands for."""
        with contextlib.suppress(OSError, ValueError):
            return int((self._directory / str(pid)).read_text())
        return None

    def _end(self) -> None:
        self._process.kill()  # the kernel ends the forks
        self._process.wait()
