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


def ending(code: int, out_of_memory: bool = False) -> str:
    """How a process ended, in words.

    Args:
        code: its return code as `subprocess` gives it.
        out_of_memory: whether that is likely, where it was killed.
    """
    if code >= 0:
        return f"ended with exit code {code}"
    number = -code
    name = signal.Signals(number).name if number in signal.Signals._value2member_map_ else f"signal {number}"
    if name in _CRASHES:
        return f"crashed ({name}: {_CRASHES[name]})"
    return f"was killed ({name}; out of memory?)" if number == signal.SIGKILL and out_of_memory else f"was killed ({name})"


_CRASHES = {
    "SIGSEGV": "a library touched memory that is not its own",
    "SIGBUS": "a mapped file was cut short, or /dev/shm is full",
    "SIGILL": "this processor lacks an instruction that a library uses",
    "SIGFPE": "a library divided by zero",
}


class MemoryWatch:
    """Whether the kernel has killed for want of memory since this was made, as far as it can be known.

    The kernel counts that, for our control group where there is one (a container, a Slurm job), else for the whole machine.
    """

    def __init__(self) -> None:
        self._before = _kills()

    def short(self) -> bool:
        """Whether it has; True where nobody counts."""
        now = _kills()
        return now is None or self._before is None or now > self._before


def _kills() -> int | None:
    """Processes that were killed for want of memory so far."""
    for name, word in (("/sys/fs/cgroup/memory.events", "oom_kill"), ("/proc/vmstat", "oom_kill")):
        try:
            with open(name, encoding="ascii") as stream:
                found = [int(line.split()[1]) for line in stream if line.split()[:1] == [word]]
        except (OSError, ValueError, IndexError):
            continue
        if found:
            return found[0]
    return None
