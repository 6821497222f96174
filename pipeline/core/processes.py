"""Child processes that never outlive who started them, free ports, and waiting until a port answers. Standard library only."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable

PARENT_PID = "CLOZE_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the one that started it dies; `PARENT_PID` in the environment names that one.

    Linux sends the signal when the *thread* that forked ends, so whoever starts such a process does it from a thread that stays.
    """
    parent = os.environ.get(PARENT_PID)
    if parent is None or not sys.platform.startswith("linux"):
        return
    _ask_kernel()
    if os.getppid() != int(parent):  # it died before we asked
        os.kill(os.getpid(), signal.SIGKILL)


def peak_memory() -> int:
    """The most bytes that this process had resident, since it began or `reset_peak_memory`."""
    try:
        with open("/proc/self/status", encoding="ascii") as stream:
            return 1024 * next(int(line.split()[1]) for line in stream if line.startswith("VmHWM"))
    except (OSError, StopIteration, ValueError):  # not Linux: in kilobytes there, but for macOS
        told = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return told if sys.platform == "darwin" else 1024 * told


def reset_peak_memory() -> bool:
    """Begin the peak anew (man 5 proc, clear_refs); false where the kernel does not."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as stream:
            stream.write("5")
    except OSError:
        return False
    return True


def _ask_kernel() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def before_exec() -> Callable[[], None] | None:
    """A `preexec_fn` that makes a foreign program die with this process; only for single-threaded parents."""
    return _ask_kernel if sys.platform.startswith("linux") else None


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports that nobody uses now. They are all held while they are chosen, so they differ."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((host, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def wait_for_port(port: int, seconds: float, alive: Callable[[], bool], host: str = "127.0.0.1") -> bool:
    """Whether somebody accepts connections at `port` within `seconds`; gives up at once when `alive()` turns false."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((host, port), timeout=1):
                return True
        except OSError:
            if not alive():
                return False
            time.sleep(0.1)
    return False


def ending(code: int) -> str:
    """How a process ended, in words: of its return code as `subprocess` gives it."""
    if code < 0:
        name = signal.Signals(-code).name
        return f"was killed ({name}; out of memory?)" if name == "SIGKILL" else f"was killed ({name})"
    return f"ended with exit code {code}"
