"""A Python that has imported the libraries: processes that tests start come out of it in a moment
instead of importing torch anew.

    [python(), "-m", "cloze.model.worker", job]    as `[sys.executable, …]`, and what that process
                                                   starts is as warm
    python -m tests.warm DIRECTORY                 the nursery, of which they are forks

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
import ctypes
import fcntl
import functools
import gc
import importlib
import inspect
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import psutil

from cloze.core.processes import PARENT_PID
from tests.set_aside import SetAside

REPOSITORY = Path(__file__).resolve().parent.parent
ENTRY = "from cloze.flows.cli import entry; entry()"
OURS = ("cloze", "tests", "benchmarks")
STARTED = (*OURS, "pytest", "prefect", "uvicorn")  # with `-m`
PATH = sys.path[1:]  # of the nursery
# `module:function`, called in a fork before its program; it may change the program
PREPARE = "CLOZE_TEST_PREPARE"
# What takes long to import and reads little of the environment when it is.
LIBRARIES = (
    "torch", "torch._dynamo", "torch.distributed", "apache_beam",
    "apache_beam.runners.worker.sdk_worker_main", "deepspeed",
    "deepspeed.runtime.engine", "deepspeed.runtime.zero.muon.muon_optimizer", "mlflow",
    "mlflow.tracking",
    "mlflow.store.tracking.sqlalchemy_store", "pyarrow", "pandas", "matplotlib.figure",
    "scipy.stats", "sklearn.metrics",
    "tokenizers", "safetensors.torch", "s3fs", "pydantic", "click", "rich.console", "jinja2", "lxml.etree",
    "ftfy", "sentencex",
    "yaml", "orjson", "prefect.server.api.server", "prefect.workers.process",
)  # fmt: skip
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
    return nursery().python


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
    """The process of which the others are forks, seen from the tests."""

    def __init__(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="cloze-warm-")
        atexit.register(directory.cleanup)
        self._directory = path = Path(directory.name)
        self.python = str(path / "python")
        Path(self.python).write_text(
            CLIENT.format(
                python=sys.executable,
                started=STARTED,
                alternatives="|".join(OURS),
                parent=PARENT_PID,
                socket=str(path / "socket"),
                forwarded=FORWARDED,
            )
        )
        Path(self.python).chmod(0o755)
        kept = {
            name: value
            for name, value in os.environ.items()
            if name.split("_")[0] not in ("PREFECT", "MLFLOW", "CLOZE", "PYTHONPATH")
        }
        more = {
            "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MLFLOW_DISABLE_TELEMETRY": "true",
            "PREFECT_HOME": str(path / "prefect"),
        }  # fmt: skip
        told, telling = os.pipe()
        leash, self._leash = os.pipe()  # closed by our end, however we end
        log = path / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm", directory.name, str(telling), str(leash)],
                cwd=REPOSITORY,
                env={**kept, **more},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[telling, leash],
                start_new_session=True,
            )
        os.close(telling)
        os.close(leash)
        atexit.register(self._end)
        with open(told, "rb") as stream:
            assert stream.read(1) == b".", log.read_text()

    def forks(self) -> list[int]:
        """The processes that live, the oldest first."""
        found = psutil.Process(self._process.pid).children()
        return [child.pid for child in sorted(found, key=psutil.Process.create_time)]

    def fork(self, pid: int) -> int | None:
        """What this process stands for."""
        with contextlib.suppress(OSError, ValueError):
            return int((self._directory / str(pid)).read_text())
        return None

    def _end(self) -> None:
        self._process.kill()  # the kernel ends the forks
        self._process.wait()


class _Server:
    """The nursery itself."""

    def __init__(self, directory: str, leash: int) -> None:
        self._directory, self._python = Path(directory), f"{directory}/python"
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(f"{directory}/socket")
        self._listening.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ, self._accept)
        self._selector.register(
            leash, selectors.EVENT_READ, functools.partial(os._exit, 0)
        )  # the kernel ends the forks

    def serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if (
                    self._selector.get_map().get(key.fd) is key
                ):  # no other event of this round has ended it
                    key.data()

    def _accept(self) -> None:
        connection, _ = self._listening.accept()
        fds: list[int] = []
        try:
            head, fds, *_ = socket.recv_fds(connection, 4, 250)
            (size,) = struct.unpack("!I", head)
            content = b""
            while len(content) < size and (more := connection.recv(size - len(content))):
                content += more
            words, place, environment, numbers = json.loads(content)
        except (OSError, ValueError, struct.error):  # who asked was killed meanwhile
            connection.close()
        else:
            nursery = os.getpid()
            asking, *_ = struct.unpack(
                "iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            )
            pid = os.fork()
            if not pid:
                _become(
                    nursery,
                    asking,
                    words,
                    place,
                    environment,
                    dict(zip(numbers, fds, strict=True)),
                    self._python,
                )
            note = self._directory / str(asking)
            note.write_text(str(pid))
            ended = os.pidfd_open(pid)
            self._selector.register(
                ended,
                selectors.EVENT_READ,
                functools.partial(self._over, pid, ended, connection, note),
            )
            self._selector.register(
                connection, selectors.EVENT_READ, functools.partial(self._told, pid, connection)
            )
        for fd in fds:
            os.close(fd)

    def _told(self, pid: int, connection: socket.socket) -> None:
        """Signals for the fork; nothing: who stands for it was killed."""
        with contextlib.suppress(ConnectionError):
            if numbers := connection.recv(16):
                for number in numbers:
                    os.kill(pid, number)
                return
        self._selector.unregister(connection)
        for kill in (os.killpg, os.kill):  # it may not have a group yet
            with contextlib.suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)

    def _over(self, pid: int, ended: int, connection: socket.socket, note: Path) -> None:
        """Tell how the fork ended."""
        _, status = os.waitpid(pid, 0)
        note.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            connection.send(struct.pack("!i", os.waitstatus_to_exitcode(status)))
        if connection in self._selector.get_map():
            self._selector.unregister(connection)
        self._selector.unregister(ended)
        connection.close()
        os.close(ended)


def _become(
    nursery: int,
    asking: int,
    words: Sequence[str],
    place: str,
    environment: dict[str, str],
    fds: dict[int, int],
    python: str,
) -> NoReturn:
    """Be what was asked for, and end."""
    code: object = 1
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # die with the nursery
        if os.getppid() != nursery:
            os._exit(1)
        os.setsid()
        # a shell's background jobs ignore it, and with them the nursery
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _enter(asking)
        _take(fds)
        os.chdir(place)
        environment.pop(PARENT_PID, None)  # who stands for it looks after that
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None  # TMPDIR may be another one
        sys.path[:] = [
            place,
            *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)),
            *PATH,
        ]
        sys.executable = python
        code = _run(words)
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code if isinstance(code, int) else 1)


def _enter(pid: int) -> None:
    """Go where that process is: another network, another host's name and files."""
    for kind in ("net", "uts", "mnt"):
        if os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}"):
            with open(f"/proc/{pid}/ns/{kind}") as there:
                assert ctypes.CDLL(None, use_errno=True).setns(there.fileno(), 0) == 0, os.strerror(
                    ctypes.get_errno()
                )


def _take(fds: dict[int, int]) -> None:
    """Have these files open under these numbers, and no others."""
    above = max([256, *fds, *fds.values()]) + 1
    held = {number: fcntl.fcntl(fd, fcntl.F_DUPFD, above) for number, fd in fds.items()}
    os.closerange(0, above)
    for number, fd in held.items():
        os.dup2(fd, number)
        os.close(fd)
    for number, mode in enumerate("rww"):
        if number not in fds:
            os.open(os.devnull, os.O_RDWR)
        errors = "backslashreplace" if number == 2 else None
        stream = open(  # noqa: SIM115
            number, mode, buffering=-1 if number == 0 else 1, closefd=False, errors=errors
        )
        setattr(sys, ("stdin", "stdout", "stderr")[number], stream)
        setattr(sys, ("__stdin__", "__stdout__", "__stderr__")[number], stream)


def _run(words: Sequence[str]) -> object:
    """`-m MODULE …` or `-c CODE …`; the exit code."""
    for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
        del sys.modules[name]
    sys.meta_path.insert(0, SetAside())  # type: ignore[arg-type]
    sys.modules["__main__"] = main = ModuleType("__main__")
    try:
        sys.argv = [words[0], *words[2:]]
        if PREPARE in os.environ:
            module, _, function = os.environ[PREPARE].partition(":")
            getattr(importlib.import_module(module), function)()
        if words[0] == "-c":
            exec(compile(words[1], "<string>", "exec"), main.__dict__)
        else:
            runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return 0 if end.code is None else end.code
    return 0


def _main(directory: str, telling: int, leash: int) -> None:
    for name in LIBRARIES:
        importlib.import_module(name)
    import torch

    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.zeros(2)
    torch.optim.AdamW([weight]).step()  # imports what takes longest
    assert threading.active_count() == 1, "a library has begun a thread, which no fork would have"
    # Torch asks for the module of whoever defines an operation. A file that is nobody's makes
    # `inspect` find the files of all modules, which it remembers: a tenth of a second of each fork.
    inspect.getmodule(compile("", "/nowhere.py", "exec"))
    gc.freeze()  # what a fork collects it has made itself
    server = _Server(directory, leash)
    os.write(telling, b".")
    os.close(telling)
    server.serve()


if __name__ == "__main__":
    _main(sys.argv[1], *map(int, sys.argv[2:]))
