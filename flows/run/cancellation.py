"""Runs of other processes: cancel one by SIGTERM, grace period and SIGKILL; record dead ones."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cloze.core import storage
from cloze.core.accounts import open_record, user_name
from cloze.core.artifacts import lock
from cloze.core.errors import UsageError, shell_command
from cloze.core.stages.execution import DEFAULT_GRACE_SECONDS
from cloze.flows.graph.command import command_directories
from cloze.flows.launch.cancel_requests import wait_or_kill
from cloze.flows.run import status_file

PATIENCE_SECONDS = 15.0  # after the grace period: for the run's process to write its final state


def cancel(
    runs: Path, name: str, report: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Cancel the run `name` and return its last record.

    Raises:
        DataError: the run does not exist, or its process cannot be killed.
        UsageError: the run is not running, runs on another host, or another process than the
            recorded one holds its lock.
    """
    record, directory = status_file.read(runs, name), str(status_file.directory_of(runs, name))
    pid, host = record["pid"], record["host"]
    if record["state"] in (status_file.LOST, status_file.UNREADABLE):
        way = "; `cloze doctor --fix` clears it" if record["state"] == status_file.LOST else ""
        raise UsageError(f"run {name}: {record['error']}{way}")
    if record["state"] != status_file.RUNNING:
        raise UsageError(
            f"run {name} does not run (it is {record['state']}); {shell_command('status', name)}"
            " shows it"
        )
    if not lock.is_this_machine(record):
        raise UsageError(
            f"run {name} runs on {host} (process {pid}); cancel it there, or in Prefect's UI"
        )
    facts, keys = lock.holder_facts(directory), lock.process_identity()
    here = {**facts, "host": socket.gethostname()}  # it may have had another name
    if not lock.is_running(here) or any(facts.get(key) != record.get(key) for key in keys):
        raise UsageError(
            f"run {name} is held by {lock.holder(directory) or 'nobody'}, not by the recorded "
            f"process {pid}, so nothing is stopped; try again once it has started"
        )
    grace = longest_grace(record)
    # tells the process a cancellation from a kill, and who asks
    mark, own = str(status_file.cancel_mark(Path(record["path"]))), user_name()
    storage.write_bytes(mark, own.encode())
    report(f"requested process {pid} to end; its trainings have {grace:.0f} s to save a checkpoint")
    try:
        is_sent = lock.send_signal(facts, signal.SIGTERM)
    except PermissionError:
        is_sent = False
    if not is_sent:  # to another account, or one that knows another host name: it looks there
        storage.write_bytes(mark, f"{own}\n{status_file.SELF}".encode())
    seconds, builder = grace + PATIENCE_SECONDS, f"process {pid}"
    if wait_or_kill(directory, builder, lambda: lock.is_locked(directory), facts, seconds, report):
        mark_crashed(runs)
    return status_file.read(runs, name)


def longest_grace(record: Mapping[str, Any]) -> float:
    """Return the longest grace period: the config's, those that nodes reported, or the default."""
    config = record["config"]
    sections = [config, *(section for section in config.values() if isinstance(section, Mapping))]
    configured = [(section.get("run") or {}).get("grace_seconds") for section in sections]
    reported = [node.get("grace_seconds") for node in record.get("nodes", {}).values()]
    defaults = [] if configured[0] is not None else [DEFAULT_GRACE_SECONDS]
    return max(
        float(seconds) for seconds in (*defaults, *configured, *reported) if seconds is not None
    )


def mark_crashed(runs: Path, *, write: bool = True) -> list[str]:
    """Write the state crashed into the records of zombie runs, and return the runs' names.

    A zombie run is recorded as running, but no process holds its lock. Without `write`, only return
    the names.
    """
    names = []
    for directory in (*status_file.directories(runs), *command_directories(runs)):
        for path in status_file.records_in(directory):
            with suppress(OSError):
                record = status_file.read_file(path)
                found = record and status_file.as_it_is(record, path)
                is_copy = lock.is_copy(str(directory))  # its process lives
                if not record or not found or found is record or is_copy:
                    continue
                if write:
                    content = json.dumps({**found, "state": status_file.CRASHED}).encode()
                    storage.write_bytes(str(path), content, opener=open_record)
                names.append(str(record["run"]))
    return names
