"""The status file of a run: one JSON record per start, for `cloze status`, `cancel` and `resume`.

    RUNS/NAME/_status/NUMBER-ID.json    one per start, the highest number is the newest; rewritten
                                        at every change of a node's state, once a second during
                                        progress, and every 30 s in any case: the run's lease
    RUNS/.commands/HASH/_status/…         of a command (`cloze.flows.graph.command`)
    RUNS/NAME/_lock                     lock of the run (`cloze.core.artifacts.lock`). A record of
                                        this host that says "running" without a held lock belongs
                                        to a zombie run.

`FIELDS` and `NODE_FIELDS` name what a record and each of its nodes have. Times are Unix seconds.
Secrets in `parameters` and `config` are redacted. Only the owner may read the file, and in a
directory that a group shares the group (`accounts.open_record`).
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import Any

from cloze.core.accounts import owner, user_name
from cloze.core.artifacts import lock
from cloze.core.errors import DataError, describe_os_error, did_you_mean, shell_command
from cloze.core.humanize import format_duration
from cloze.core.records import (
    NUMBER,
    NUMBER_OR_NONE,
    TEXT_OR_NONE,
    Fields,
    is_record,
    read_record,
)
from cloze.flows.graph.command import (
    COMMANDS,
    STATUS,
    command_directories,
    command_directory,
    run_directories,
)

DIRECTORY, directories = STATUS, run_directories
RUNNING, FINISHED, FAILED = "running", "finished", "failed"
CANCELLED, CRASHED = "cancelled", "crashed"
# states of nodes, in addition to running, finished and failed
WAITING, CACHED, SKIPPED, STOPPED = ("waiting", "cached", "skipped", "stopped")
RETRYING = "retrying"  # failed, and waits for its next attempt; `why` names both
QUEUED = "queued"  # node that waits only for cores, GPUs or hosts; `why` names the reason
LOST = "lost"  # shown, never written: a run of another host whose lease has expired
UNREADABLE = "unreadable"  # shown, never written: the newest record is damaged
FIELDS: Fields = {
    "run": str, "state": str, "pid": int, "host": str, "started": NUMBER, "ended": NUMBER_OR_NONE,
    "error": TEXT_OR_NONE, "parameters": (dict, NoneType), "config": (dict, NoneType),
    "owner": TEXT_OR_NONE, "account": TEXT_OR_NONE,
    "prefect": TEXT_OR_NONE, "begun": (list, NoneType), "source": TEXT_OR_NONE,
    "nodes": dict,
}  # fmt: skip
NODE_FIELDS: Fields = {
    "stage": TEXT_OR_NONE, "section": TEXT_OR_NONE, "state": str, "why": TEXT_OR_NONE,
    "artifact": str, "inputs": (list, NoneType), "after": (list, NoneType),
    "started": NUMBER_OR_NONE, "ended": NUMBER_OR_NONE, "done": NUMBER_OR_NONE,
    "total": NUMBER_OR_NONE, "unit": TEXT_OR_NONE, "figures": (dict, NoneType),
    "seconds_left": NUMBER_OR_NONE, "error": TEXT_OR_NONE, "attempt": NUMBER_OR_NONE,
}  # fmt: skip
SELF = "by itself"  # second line of a cancel mark: this account may not send the process a signal
LEASE_SECONDS = 600.0  # storage may stall for minutes, and clocks of hosts differ


def end_nodes(content: Mapping[str, Any], running: str) -> None:
    """Give started nodes the state `running`, and waiting nodes the state skipped."""
    for node in content["nodes"].values():
        if node["state"] in (RUNNING, WAITING, QUEUED, RETRYING):
            has_started = node["state"] == RUNNING or "started" in node
            node["state"] = running if has_started else SKIPPED


def as_it_is(record: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a record with the true state of its run: one without a process has crashed or is lost.

    A file system may hide other hosts' locks, so another host's run is lost only once its lease has
    expired. If it lives after all, its next write says "running" again.

    Raises FileNotFoundError: the run's next start has removed the record.
    """
    written, host = path.stat().st_mtime, record["host"]
    silence, is_own = time.time() - written, lock.is_this_machine(record)
    if record["state"] != RUNNING or not (is_own or silence > LEASE_SECONDS):
        return record
    directory = path.parent.parent
    if lock.is_locked(str(directory)):
        return record
    end_nodes(record, CRASHED)
    if is_own and lock.is_copy(str(directory)):
        state = CRASHED
        error = (
            f"this is a copy of run {record['run']}, which process {record['pid']} goes on with; "
            f"delete it, or go on with it on its own: {shell_command('resume', directory.name)}"
        )
    elif is_own:
        state, error = CRASHED, f"process {record['pid']} on {host} is gone"
    else:
        silent = format_duration(max(0.0, silence))
        state = LOST
        error = f"no sign of life from process {record['pid']} on {host} for {silent}: it is lost"
    return {**record, "state": state, "ended": written, "error": error}


def _why_unwritten(path: Path) -> str:
    """Return what keeps files from being written beside a record, perhaps its end, too."""
    try:
        with tempfile.TemporaryFile(dir=path.parent, buffering=0) as probe:
            probe.write(bytes(1 << 12))
    except OSError as cause:
        cause.filename = str(path.parent)
        return "" if cause.errno == errno.EACCES else f"; {describe_os_error(cause, '')}"
    return ""


def _unreadable(path: Path, written: float) -> dict[str, Any]:
    """Return what is known of a damaged record: its process may be alive, its work unfinished."""
    error = f"{path} is damaged; start the run again, with its config, for a new record"
    if not os.access(path, os.R_OK):
        remedy = "share its directories (chmod g+rwxs) and records (chmod g+rw)"
        error = f"{path} is for {owner(path)} alone to read; {remedy}"
    times = {"started": written, "ended": written}
    return {"state": UNREADABLE, "error": error, "path": str(path), **times}


def cancel_mark(path: Path) -> Path:
    """Return the file beside a record that asks its run to end: who asks, and perhaps `SELF`."""
    return path.with_suffix(".cancel")


def records_in(directory: Path) -> list[Path]:
    """Return the record files of a run's directory, oldest first."""
    return sorted((directory / DIRECTORY).glob("*.json"), key=lambda path: (number_of(path), path))


def number_of(path: Path) -> int:
    """Return a record's number; a clock in its place may be set back, or differ between hosts."""
    digits = path.name.partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def read_file(path: Path) -> dict[str, Any] | None:
    """Return the record in a file; None if the file is damaged or missing."""
    with suppress(OSError):
        content = read_record(path.read_bytes(), FIELDS)
        if content is not None and all(
            is_record(node, NODE_FIELDS) for node in content["nodes"].values()
        ):
            lacking = {"config": {}, "parameters": {}, "owner": owner(path.parent.parent)}
            return {**lacking, **content}  # of earlier versions
    return None


def newest(
    directory: Path, known: Mapping[Path, dict[str, Any]] | None = None
) -> dict[str, Any] | None:
    """Return the newest record of the run in `directory`; None if there is none.

    The record gets the key `path`; a zombie run's record gets the state crashed. Instead of a
    damaged one, the one before it is returned with the state unreadable. `known`: records that were
    read already, by file.
    """
    damaged: tuple[Path, float] | None = None
    for path in reversed(records_in(directory)):
        with suppress(FileNotFoundError):  # the run's next start has removed it
            written = path.stat().st_mtime
            record = (known or {}).get(path) or read_file(path)
            if record is None:
                damaged = damaged or (path, written)
                continue
            if damaged is not None:
                return {**record, **_unreadable(*damaged)}
            # a directory may be renamed or copied; a command's record has its artifact's name
            name = record["run"] if directory.parent.name == COMMANDS else directory.name
            return {**as_it_is(record, path), "run": name, "path": str(path)}
    if damaged is None:
        return None
    empty = {"host": "", "pid": 0, "prefect": None, "nodes": {}, "config": {}, "parameters": {}}
    facts = {"run": directory.name, "owner": owner(directory)}
    return {**facts, **empty, **_unreadable(*damaged)}


def all_records(runs: Path) -> dict[str, dict[str, Any]]:
    """Return the newest record of every run below `runs`, by run name."""
    newest_records = {name_of(runs, path): newest(path) for path in directories(runs)}
    return {name: {**each, "run": name} for name, each in newest_records.items() if each}


def command_records(runs: Path) -> dict[str, dict[str, Any]]:
    """Return the newest record of every command, by the artifact's directory."""
    records = [record for path in command_directories(runs) if (record := newest(path)) is not None]
    return {record["run"]: record for record in records}


def directory_of(runs: Path, name: str) -> Path:
    """Return the directory with the records of a run, or of a command (`name`: its artifact)."""
    run = runs / name
    return run if (run / DIRECTORY).is_dir() else command_directory(runs, name)


def whose(directory: Path, name: str) -> str:
    """Return whose the running start is, and how to have a run of one's own; empty: it is ours."""
    own, account = user_name(), (newest(directory) or {}).get("account")
    remedy = f"or name a run of your own: --set name={own}/{name.rpartition('/')[2]}"
    return "" if account in (None, own) else f" (it is {account}'s), {remedy}"


def read(runs: Path, name: str) -> dict[str, Any]:
    """Return the newest record of the run `name`, with what may have kept its end from it.

    Raises DataError: the run does not exist; the message suggests the nearest name.
    """
    record = newest(directory_of(runs, name))
    if record is None:
        names = [name_of(runs, path) for path in directories(runs)]
        hint = did_you_mean(name, names)
        raise DataError(f"no run {name!r} in {runs}; {hint}")
    path = Path(record.get("path", ""))
    if path.is_relative_to(runs / name):
        record["run"] = name
    if record["state"] == CRASHED and (read_file(path) or record)["state"] == RUNNING:
        record["error"] += _why_unwritten(path)
    return record


def name_of(runs: Path, directory: Path) -> str:
    """Return the name of the run in a directory below `runs`: NAME, or USER/NAME."""
    return directory.relative_to(runs).as_posix()
