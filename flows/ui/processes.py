"""Processes of `cloze ui`, found by environment variables that all descendants inherit."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from cloze.core.processes import wait_until

MARK = "CLOZE_SERVERS"  # state directory of the supervisor that started the process
SERVICE = "CLOZE_SERVICE"  # name of the service that started the process
POLL_SECONDS = 0.05
KILL_SECONDS = 5.0  # for the kernel to end a killed process


def marked_processes(directory: Path, service: str | None = None) -> list[psutil.Process]:
    """Return this user's processes that descend from the supervisor of a state directory.

    `service`: only descendants of this service. None: all but this process and its descendants.
    """
    excluded = {os.getpid()}
    if service is None:
        excluded |= {child.pid for child in psutil.Process().children(recursive=True)}
    expected = {MARK: str(directory.resolve()), **({SERVICE: service} if service else {})}
    matches = []
    for process in psutil.process_iter(["uids"]):
        uids = process.info["uids"]
        if (
            process.pid in excluded
            or uids is None
            or uids.real != os.getuid()
            or not _runs(process)
        ):
            continue
        with suppress(psutil.Error, OSError):
            environment = process.environ()
            if all(environment.get(name) == value for name, value in expected.items()):
                matches.append(process)
    return matches


def end(processes: Iterable[psutil.Process], grace: float) -> None:
    """Send SIGTERM to processes, wait up to `grace` seconds, and kill the rest.

    Only processes whose parent is not in the list get SIGTERM: each ends its own children.
    """
    listed = list(dict.fromkeys(processes))
    pids = {process.pid for process in listed}
    for process in listed:
        with suppress(psutil.Error):
            if process.ppid() not in pids:
                process.terminate()
    wait_until(lambda: not any(map(_runs, listed)), grace, POLL_SECONDS)
    remaining = list(filter(_runs, listed))
    for process in remaining:
        with suppress(psutil.Error):
            process.kill()
    wait_until(lambda: not any(map(_runs, remaining)), KILL_SECONDS, POLL_SECONDS)


def _runs(process: psutil.Process) -> bool:
    """Return whether a process is alive; a zombie is not."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
