"""Child processes that die with their parent, ports, exit codes, memory and CPU limits.

Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PARENT_PID = "CLOZE_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies; `PARENT_PID` names the parent.

    Linux sends the signal when the *thread* that forked ends, so fork from a thread that stays
    alive.
    """
    parent = os.environ.get(PARENT_PID)
    if parent is None or not sys.platform.startswith("linux"):
        return
    _ask_kernel()
    if os.getppid() != int(parent):  # the parent died before the request
        os.kill(os.getpid(), signal.SIGKILL)


def peak_memory() -> int:
    """Return the peak resident memory in bytes, since the start or `reset_peak_memory`."""
    try:
        with open("/proc/self/status", encoding="ascii") as stream:
            return 1024 * next(int(line.split()[1]) for line in stream if line.startswith("VmHWM"))
    except (OSError, StopIteration, ValueError):  # not Linux; kilobytes except on macOS
        told = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return told if sys.platform == "darwin" else 1024 * told


def reset_peak_memory() -> bool:
    """Reset the peak memory (man 5 proc, clear_refs); return False if that is impossible."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as stream:
            stream.write("5")
    except OSError:
        return False
    return True


def _ask_kernel() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def set_parent_death_signal() -> Callable[[], None] | None:
    """Return a `preexec_fn` that kills a child with its parent; for single-threaded parents."""
    return _ask_kernel if sys.platform.startswith("linux") else None


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return free ports; all are bound while they are chosen, so they differ."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((host, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def wait_for_port(
    port: int, seconds: float, alive: Callable[[], bool], host: str = "127.0.0.1"
) -> bool:
    """Return whether `port` accepts connections within `seconds`; stop when `alive()` is false."""
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


def describe_exit(code: int, out_of_memory: bool = False) -> str:
    """Describe how a process ended.

    Args:
        code: return code, as `subprocess` gives it.
        out_of_memory: name lack of memory as the likely cause of a SIGKILL.
    """
    if code >= 0:
        return f"ended with exit code {code}"
    number = -code
    name = (
        signal.Signals(number).name
        if number in signal.Signals._value2member_map_
        else f"signal {number}"
    )
    if name in _CRASHES:
        return f"crashed ({name}: {_CRASHES[name]})"
    return (
        f"was killed ({name}; out of memory?)"
        if number == signal.SIGKILL and out_of_memory
        else f"was killed ({name})"
    )


_CRASHES = {
    "SIGSEGV": "a library touched memory that is not its own",
    "SIGBUS": "a mapped file was cut short, or /dev/shm is full",
    "SIGILL": "this processor lacks an instruction that a library uses",
    "SIGFPE": "a library divided by zero",
}


class MemoryWatch:
    """Detects out-of-memory kills by the kernel since this object was created.

    The kernel counts them per control group (container, Slurm job), else for the whole machine.
    """

    def __init__(self) -> None:
        self._before = _kills()

    def short(self) -> bool:
        """Return whether a process was killed for lack of memory; True if there is no counter."""
        now = _kills()
        return now is None or self._before is None or now > self._before


def _kills() -> int | None:
    """Return the number of processes killed for lack of memory so far; None if unknown."""
    for name, word in (("/sys/fs/cgroup/memory.events", "oom_kill"), ("/proc/vmstat", "oom_kill")):
        try:
            with open(name, encoding="ascii") as stream:
                found = [int(line.split()[1]) for line in stream if line.split()[:1] == [word]]
        except (OSError, ValueError, IndexError):
            continue
        if found:
            return found[0]
    return None


# The cores that this process may use, after CPU affinity and container quotas.

GROUPS = Path("/sys/fs/cgroup")  # mount point of systemd, Docker and Kubernetes
_OWN = Path("/proc/self/cgroup")


def available_cpus() -> tuple[int, ...]:
    """Return the core numbers in order, at least one.

    With a quota of Q cores only the first Q, rounded down: more threads would be throttled.
    """
    try:
        cores = sorted(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cores = list(range(os.cpu_count() or 1))
    return tuple(cores[: max(1, int(min([len(cores), *_quotas()])))])


def _quotas() -> Iterator[float]:
    """Yield the CPU quota, in cores, of each control group of this process and of their parents."""
    try:
        lines = _OWN.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = GROUPS / "cpu" if controllers else GROUPS
        inside = root / group.lstrip("/")
        for place in (inside, *inside.parents):
            if not place.is_relative_to(root):
                break
            quota, period = _version_1(place) if controllers else _version_2(place)
            if quota > 0 and period > 0:
                yield quota / period


def _version_1(place: Path) -> tuple[int, int]:
    """Return quota and period in microseconds; (-1, 0) without a quota."""
    try:
        return int((place / "cpu.cfs_quota_us").read_text()), int(
            (place / "cpu.cfs_period_us").read_text()
        )
    except (OSError, ValueError):
        return -1, 0


def _version_2(place: Path) -> tuple[int, int]:
    try:
        quota, period = (place / "cpu.max").read_text().split()
        return int(quota), int(period)
    except (OSError, ValueError):  # no such file, or "max 100000"
        return -1, 0
