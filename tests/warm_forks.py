"""The nursery that `tests.warm` starts: it imports the libraries, and forks what is asked of it.

    python -m tests.warm_forks DIRECTORY LEASH

It listens at `DIRECTORY/socket` once it has imported them, and ends when `LEASH` is closed.
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
import pickle
import re
import runpy
import selectors
import signal
import socket
import struct
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from cloze.core.processes import PARENT_PID
from tests.set_aside import SetAside

OURS = ("cloze", "tests", "benchmarks")
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


class _Server:
    """The nursery itself."""

    def __init__(self, directory: str, leash: int) -> None:
        self._directory, self._python = Path(directory), f"{directory}/python"
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(f"{directory}/begun")
        self._listening.listen(64)
        os.rename(f"{directory}/begun", f"{directory}/socket")  # who finds it is heard
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


def compile_patterns() -> None:
    """Compile the program's regular expressions, of which Python keeps those it has compiled: a
    quarter of a fork's start. Which ones they are tells a fork that imports the program.
    """
    re._MAXCACHE = 10_000  # type: ignore[attr-defined]
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        with open(writing, "wb") as stream:
            importlib.import_module("cloze.flows.graph.stages").TABLE.loaded()
            pickle.dump([(pattern, flags) for _, pattern, flags in re._cache], stream)  # type: ignore[attr-defined]
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as stream:
        for pattern, flags in pickle.load(stream):
            re.compile(pattern, flags)
    os.waitpid(pid, 0)


def _main(directory: str, leash: int) -> None:
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
    compile_patterns()
    gc.freeze()  # what a fork collects it has made itself
    _Server(directory, leash).serve()


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
