"""Processes of one machine: parents, ports, exit codes, memory and CPU limits, heartbeats.

Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PARENT_PID = "CLOZE_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel end this process when its parent dies; `PARENT_PID` names the parent.

    Linux sends the signal when the *thread* that forked ends, so fork from a thread that stays
    alive. Args: number: the signal.
    """
    parent = os.environ.get(PARENT_PID)
    if parent is None or not sys.platform.startswith("linux"):
        return
    request_death_signal(number)
    if os.getppid() != int(parent):  # the parent died before the request
        os.kill(os.getpid(), number)


def process_state(pid: int) -> str:
    """Return the kernel's state letter, T if it is stopped; '' if it is gone or without /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def peak_memory() -> int:
    """Return the peak resident memory of this process in bytes."""
    try:
        with open("/proc/self/status", encoding="ascii") as stream:
            return 1024 * next(int(line.split()[1]) for line in stream if line.startswith("VmHWM"))
    except (OSError, StopIteration, ValueError):  # not Linux; kilobytes except on macOS
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


def memory_limit() -> int:
    """Return the memory of this machine, or of its control group with the least, in bytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *(limit for limit, _ in _memory_groups())])


def free_memory(of_machine: float) -> float:
    """Return the machine's available bytes, or what a control group leaves, if less."""
    return max(0.0, min([of_machine, *(limit - used for limit, used in _memory_groups())]))


def _memory_groups() -> Iterator[tuple[int, int]]:
    """Yield limit and use, in bytes, of each control group; cached files count as free."""
    for group, is_first in _groups("memory"):
        limit, use = ("limit_in_bytes", "usage_in_bytes") if is_first else ("max", "current")
        with contextlib.suppress(OSError, ValueError):  # no such file, or `max`
            values = [int((group / f"memory.{name}").read_text()) for name in (limit, use)]
            lines = (group / "memory.stat").read_text().splitlines()
            kept = dict(line.split() for line in lines)
            cached = kept.get("total_inactive_file" if is_first else "inactive_file", "0")
            yield values[0], values[1] - int(cached)


def request_death_signal(number: int = signal.SIGKILL) -> None:
    """Ask the kernel to send this process a signal when its parent dies; Linux only.

    It may be a `preexec_fn` of single-threaded parents.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number))


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


def wait_until(is_so: Callable[[], bool], seconds: float, poll: float = 0.1) -> bool:
    """Ask every `poll` seconds; return True as soon as it is so, or False after `seconds`."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll)
    return True


def wait_for_port(port: int, seconds: float, alive: Callable[[], bool]) -> bool:
    """Return whether this host's `port` accepts connections within `seconds`.

    Stop waiting when `alive()` is false.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
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
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name in _CRASHES:
        return f"crashed ({name}: {_CRASHES[name]})"
    hint = "; out of memory?" if name == "SIGKILL" and out_of_memory else ""
    return f"was killed ({name}{hint})"


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
        self._before = _out_of_memory_kills()

    def short(self) -> bool:
        """Return whether a process was killed for lack of memory; True if there is no counter."""
        now = _out_of_memory_kills()
        return now is None or self._before is None or now > self._before


def _out_of_memory_kills() -> int | None:
    """Return the number of processes killed for lack of memory so far; None if unknown."""
    groups = (group / "memory.events" for group, is_first in _groups("memory") if not is_first)
    for path in (*groups, Path("/proc/vmstat")):
        try:
            with open(path, encoding="ascii") as stream:
                return next(int(line.split()[1]) for line in stream if line.startswith("oom_kill "))
        except (OSError, ValueError, StopIteration):
            continue
    return None


# The cores that this process may use, after CPU affinity and container quotas.

GROUPS = Path("/sys/fs/cgroup")  # mount point of systemd, Docker and Kubernetes
_OWN_GROUPS = Path("/proc/self/cgroup")


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
    """Yield the CPU quota, in cores, of each control group with one."""
    for group, is_first in _groups("cpu"):
        try:  # in microseconds
            if is_first:
                quota = int((group / "cpu.cfs_quota_us").read_text())
                period = int((group / "cpu.cfs_period_us").read_text())
            else:
                quota, period = map(int, (group / "cpu.max").read_text().split())
        except (OSError, ValueError):  # no such file, or "max 100000"
            continue
        if quota > 0 and period > 0:
            yield quota / period


def _groups(controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield each control group of this process and its parents, and whether of version 1."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = GROUPS / controller if controllers else GROUPS
        group = root / name.lstrip("/")
        for directory in (group, *group.parents):
            if not directory.is_relative_to(root):
                break
            yield directory, bool(controllers)


# Heartbeats: a rank's step, phase and the phase's start, in memory shared with its parent.
#
# The rank writes a few numbers at each change of its phase; nothing is sent. So the parent can tell
# a rank that was stopped, or hangs in a library that holds the GIL, from a rank that waits for it.
# Both are on one machine and share its monotonic clock.

HEARTBEAT_FD = "CLOZE_HEARTBEAT_FD"
_STATUS = struct.Struct("<qqdd")


class RankPhase(enum.IntEnum):
    """The current activity of a rank."""

    STARTING = 0
    DATA = 1  # waits for its batch
    COMPUTING = 2
    EXCHANGE = 3  # waits for the other ranks
    LOGGING = 4
    EVALUATING_OR_SAVING = 5  # evaluates or saves

    @property
    def description(self) -> str:
        """Return the activity as a participle, for a sentence: "it is …"."""
        return {
            RankPhase.STARTING: "starting",
            RankPhase.DATA: "waiting for its batch",
            RankPhase.COMPUTING: "computing",
            RankPhase.EXCHANGE: "waiting for the other ranks",
            RankPhase.LOGGING: "writing its log line",
            RankPhase.EVALUATING_OR_SAVING: "measuring or saving",
        }[self]


@dataclass(frozen=True, slots=True)
class RankStatus:
    """The state of a rank at one moment."""

    step: int = 0  # current step, from 1; 0: none yet
    phase: RankPhase = RankPhase.STARTING
    since: float = 0.0  # start of the phase on the monotonic clock, in seconds
    limit: float = 0.0  # seconds after which the phase has taken too long; 0: no limit


class HeartbeatWriter:
    """The rank's side of the heartbeat; does nothing if no parent reads it."""

    def __init__(self, number: int | None = None) -> None:
        """Map the shared memory at the file descriptor `number`; None: no parent reads it."""
        self._memory = None if number is None else mmap.mmap(number, _STATUS.size)
        # A limit of the start is the worker's, and stays until the first step.
        self._limit = 0.0 if self._memory is None else _STATUS.unpack_from(self._memory, 0)[3]
        self._step, self._pause_limit = 0, self._limit
        self._pauses = 0  # blocks that evaluate or save
        self.set_phase(RankPhase.STARTING)

    @classmethod
    def from_env(cls) -> HeartbeatWriter:
        """Open the heartbeat at the file descriptor that the environment names."""
        number = os.environ.get(HEARTBEAT_FD)
        return cls(None if number is None else int(number))

    def _write(self) -> None:
        if self._memory is not None:
            limit = self._pause_limit if self._pauses else self._limit
            _STATUS.pack_into(self._memory, 0, self._step, self._phase, self._since, limit)

    def set_phase(self, phase: RankPhase) -> None:
        self._phase, self._since = phase, time.monotonic()
        self._write()

    @contextlib.contextmanager
    def phase(self, phase: RankPhase) -> Iterator[None]:
        """Set the phase for the block, then restore the previous one.

        Phases within a block of `EVALUATING_OR_SAVING` have the limit of pauses.
        """
        previous, is_pause = self._phase, phase is RankPhase.EVALUATING_OR_SAVING
        self._pauses += is_pause
        self.set_phase(phase)
        try:
            yield
        finally:
            self._pauses -= is_pause
            self.set_phase(previous)

    def begin_step(self, number: int, limit: float, pause_limit: float) -> None:
        """Start step `number` (from 1).

        Args:
            limit: seconds that each phase may take; 0: no limit.
            pause_limit: the same for phases of an evaluation or a save.
        """
        self._step, self._limit, self._pause_limit = number, limit, pause_limit
        self._write()


class HeartbeatReader:
    """The parent's side: it passes `number` to the rank that it starts, and reads."""

    def __init__(self) -> None:
        self._file: IO[bytes]
        if hasattr(os, "memfd_create"):  # a page of a file on a full disk would raise SIGBUS
            self._file = open(os.memfd_create("heartbeat"), "r+b")  # noqa: SIM115
        else:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._file.truncate(_STATUS.size)
        self.number = self._file.fileno()
        self._memory = mmap.mmap(self.number, _STATUS.size)

    def read(self) -> RankStatus:
        """Read the status; it may be half-written, so act only on a value that was seen twice."""
        step, number, since, limit = _STATUS.unpack_from(self._memory, 0)
        phase = RankPhase(number) if 0 <= number < len(RankPhase) else RankPhase.STARTING
        return RankStatus(step, phase, since, limit)

    def close(self) -> None:
        self._memory.close()
        self._file.close()
