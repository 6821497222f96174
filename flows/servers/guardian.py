"""`python -m flows.servers.guardian GRACE COMMAND …`: run a server, and let nothing of it outlive it.

The guardian leads a session of its own and adopts what its server leaves behind (a subreaper), however deep and in whatever session.
Asked to end (SIGTERM), it asks the server; when the server has ended, by itself or by somebody's hand, it asks what is left, waits
GRACE seconds (a flow of a killed worker saves its checkpoint), and kills the rest. When the supervisor dies, the kernel asks the guardian;
when the guardian is killed, the kernel asks the server.

It ends with the server's exit code, 128 + N for signal N.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil

from pipeline.core.processes import PARENT_PID

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LAST_SECONDS = 5.0  # between asking the leftovers of a server that has ended in peace, and killing them


def guard(command: list[str], grace: float) -> int:
    """Run the command until it has ended with all that it has started; its exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_ASKED, signal.SIGCHLD})
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.environ.get(PARENT_PID) not in (None, str(os.getppid())):  # the supervisor died before we asked
        return 1
    server = subprocess.Popen(command, preexec_fn=_in_child, env={**os.environ, PARENT_PID: str(os.getpid())})
    asked: float | None = None
    while server.poll() is None:
        received = signal.sigtimedwait({*_ASKED, signal.SIGCHLD}, 1.0)
        if received is not None and received.si_signo in _ASKED:
            asked = asked or time.monotonic()
            server.send_signal(signal.SIGTERM)
        elif received is not None:
            _reap(server)
        if asked is not None and time.monotonic() > asked + grace:
            server.kill()
    _end_orphans(LAST_SECONDS if asked is not None else grace)
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


def _end_orphans(grace: float) -> None:
    """Ask those that the server left to us; each asks its own. Kill whoever is left when the time is up."""
    deadline, asked = time.monotonic() + grace, set()
    while orphans := _children():
        for orphan in orphans:
            with suppress(psutil.Error):
                if time.monotonic() > deadline:
                    for process in [*orphan.children(recursive=True), orphan]:
                        with suppress(psutil.Error):
                            process.kill()
                elif orphan.pid not in asked:
                    asked.add(orphan.pid)
                    orphan.terminate()
        signal.sigtimedwait({signal.SIGCHLD}, 0.2)
        _reap(None)


def _children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def _reap(server: subprocess.Popen[bytes] | None) -> None:
    """Let go of adopted processes that have ended; the server itself is `Popen`'s."""
    for child in psutil.Process().children():
        if server is None or child.pid != server.pid:
            with suppress(psutil.Error, ChildProcessError):
                if child.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(child.pid, os.WNOHANG)


def _in_child() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*_ASKED, signal.SIGCHLD})
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(guard(sys.argv[2:], float(sys.argv[1])))
