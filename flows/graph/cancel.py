"""End a run from outside: its process is asked to, waits for checkpoints, and is killed if it does not end."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flows.graph import record
from pipeline.core.errors import DataError, UsageError
from pipeline.core.execution import LEAST_GRACE
from pipeline.core.lock import is_held

PATIENCE_SECONDS = 15.0  # for the run's process to write its end, after its trainings had `run.grace_seconds`


def cancel(runs: Path, name: str, told: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """End the run of that name; its last record.

    Args:
        told: hears what is waited for.

    Raises:
        DataError: there is no such run.
        UsageError: it does not run, or runs on another machine.
    """
    found = record.read(runs, name)
    directory = runs / name
    if found["state"] != record.RUNNING:
        raise UsageError(f"run {name} does not run (it is {found['state']}); `cloze status {name}` shows it")
    if found["host"] != socket.gethostname():
        raise UsageError(f"run {name} runs on {found['host']} (process {found['pid']}); cancel it there, or in Prefect's UI")
    grace = _grace(found)
    record.ask_to_cancel(found)
    told(f"process {found['pid']} is asked to end; its trainings have {grace:.0f} s to save a checkpoint")
    with suppress(ProcessLookupError):
        os.kill(found["pid"], signal.SIGTERM)
    if not _ended(directory, grace + PATIENCE_SECONDS):
        told(f"it did not end in {grace + PATIENCE_SECONDS:.0f} s and is killed, with all that it has started")
        with suppress(ProcessLookupError):
            os.kill(found["pid"], signal.SIGKILL)  # the kernel kills the ranks with it
        if not _ended(directory, PATIENCE_SECONDS):
            raise DataError(
                f"{directory} is still held by process {found['pid']}, which cannot be killed; look at `cloze doctor`"
            )
        record.mark_dead(runs)
    return record.read(runs, name)


def _grace(found: Mapping[str, Any]) -> float:
    """The longest that any of its nodes may take to save: what its config says, or what the node itself has told."""
    config = found["config"]
    sections = [config, *(section for section in config.values() if isinstance(section, Mapping))]
    given = [(section.get("run") or {}).get("grace_seconds") for section in sections]
    told = [node.get("grace_seconds") for node in found.get("nodes", {}).values()]
    usual = [] if given[0] is not None else [LEAST_GRACE]
    return max(float(seconds) for seconds in (*usual, *given, *told) if seconds is not None)


def _ended(directory: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while is_held(str(directory)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True
