"""Processes that are surely ours: known by number and start, or by the mark that every child of `cloze ui` inherits."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

MARK = "CLOZE_SERVERS"  # an environment variable: the state directory of the supervisor that a process descends from
SERVICE = "CLOZE_SERVICE"  # and its service there
LOOK_SECONDS = 0.05  # between looks at processes that are asked to end


def started(pid: int) -> float | None:
    """When a process was started; None if there is none. With the number it names a process for good, as long as the machine is up.

    In clock ticks since the machine's start, where the kernel says that (a clock that is set does not change it), else Unix seconds.
    """
    with suppress(OSError, psutil.Error, ValueError, IndexError):
        if not sys.platform.startswith("linux"):
            return float(psutil.Process(pid).create_time())
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
        return None if fields[0] in "ZX" else float(fields[19])
    return None


def is_alive(pid: int, since: float) -> bool:
    """Whether the process of that number is still the one that was started then."""
    return started(pid) == since


def marked(directory: Path, service: str | None = None) -> list[psutil.Process]:
    """Processes of this user that descend from a supervisor of that state directory, this process and its descendants apart.

    Args:
        service: only those that descend from this service of it, and then the descendants of this process too.
    """
    mine = {os.getpid()}
    if service is None:
        mine |= {child.pid for child in psutil.Process().children(recursive=True)}
    wanted = {MARK: str(directory.resolve()), **({SERVICE: service} if service else {})}
    found = []
    for process in psutil.process_iter(["uids"]):
        with suppress(psutil.Error, OSError):
            uids = process.info["uids"]
            if process.pid in mine or uids is None or uids.real != os.getuid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            environment = process.environ()
            if all(environment.get(name) == value for name, value in wanted.items()):
                found.append(process)
    return found


def recorded(services: Mapping[str, Mapping[str, Any]]) -> list[psutil.Process]:
    """The processes that a state file names and that are still the same ones."""
    found = []
    for service in services.values():
        pid, since = service.get("guardian"), service.get("started")
        if isinstance(pid, int) and isinstance(since, (int, float)) and is_alive(pid, since):
            with suppress(psutil.Error):
                found.append(psutil.Process(pid))
    return found


def end(processes: Iterable[psutil.Process], grace: float) -> list[int]:
    """Ask them to end, wait up to `grace` seconds, and kill the rest. The numbers of those that were asked.

    Only those whose parent is not among them are asked: each of these ends its own.
    """
    listed = list(dict.fromkeys(processes))
    numbers = {process.pid for process in listed}
    for process in listed:
        with suppress(psutil.Error):
            if process.ppid() not in numbers:
                process.terminate()
    for process in (left := _those_that_stay(listed, grace)):
        with suppress(psutil.Error):
            process.kill()
    _those_that_stay(left, 5)
    return sorted(numbers)


def _those_that_stay(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Which of them run still after so many seconds, or none as soon as all have ended; one that its parent has not asked for has."""
    deadline = time.monotonic() + seconds
    while (left := [process for process in processes if _runs(process)]) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    return left


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
