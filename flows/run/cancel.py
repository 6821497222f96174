"""Cancellation of a run from another process: SIGTERM, grace period, then SIGKILL."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cloze.core.artifacts.lock import is_held
from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execution import DEFAULT_GRACE_SECONDS
from cloze.flows.run import status_file

PATIENCE_SECONDS = 15.0  # after the grace period: for the run's process to write its final state


def cancel(
    runs: Path, name: str, report: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Cancel the run `name` and return its last record.

    Args:
        runs: the directory of all runs.
        report: callback for progress messages.

    Raises:
        DataError: the run does not exist, or its process cannot be killed.
        UsageError: the run is not running, or runs on another host.
    """
    record = status_file.read(runs, name)
    directory = status_file.directory_of(runs, name)
    if record["state"] != status_file.RUNNING:
        raise UsageError(
            f"run {name} does not run (it is {record['state']}); `cloze status {name}` shows it"
        )
    if record["host"] != socket.gethostname():
        raise UsageError(
            f"run {name} runs on {record['host']} (process {record['pid']}); cancel it there, or "
            f"in Prefect's UI"
        )
    grace = _grace(record)
    status_file.ask_to_cancel(record)
    report(
        f"process {record['pid']} is asked to end; its trainings have {grace:.0f} s to save a "
        f"checkpoint"
    )
    with suppress(ProcessLookupError):
        os.kill(record["pid"], signal.SIGTERM)
    if not _ended(directory, grace + PATIENCE_SECONDS):
        report(
            f"it did not end in {grace + PATIENCE_SECONDS:.0f} s and is killed, with all that it "
            f"has started"
        )
        with suppress(ProcessLookupError):
            os.kill(record["pid"], signal.SIGKILL)  # the kernel kills the ranks with it
        if not _ended(directory, PATIENCE_SECONDS):
            raise DataError(
                f"{directory} is still held by process {record['pid']}, which cannot be killed; "
                f"look at `cloze doctor`"
            )
        status_file.mark_crashed(runs)
    return status_file.read(runs, name)


def _grace(found: Mapping[str, Any]) -> float:
    """Return the longest grace period: the config's, those that nodes reported, or the default."""
    config = found["config"]
    sections = [config, *(section for section in config.values() if isinstance(section, Mapping))]
    configured = [(section.get("run") or {}).get("grace_seconds") for section in sections]
    reported = [node.get("grace_seconds") for node in found.get("nodes", {}).values()]
    defaults = [] if configured[0] is not None else [DEFAULT_GRACE_SECONDS]
    return max(
        float(seconds) for seconds in (*defaults, *configured, *reported) if seconds is not None
    )


def _ended(directory: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while is_held(str(directory)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True
