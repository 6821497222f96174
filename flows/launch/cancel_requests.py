"""Cancel requests: `_logs/cancel.json` asks the process that builds a directory to stop.

Unlike a signal, the file works across hosts and with every launcher.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from cloze.core import storage
from cloze.core.artifacts import artifact, checkpoints, lock
from cloze.core.artifacts.fence import Fence
from cloze.core.artifacts.lock import is_locked
from cloze.core.errors import DataError, UsageError, shell_command
from cloze.core.processes import wait_until
from cloze.core.stages.execution import Execution
from cloze.core.stages.worker import JOB, LOGS, Job
from cloze.flows.launch import event_files

PATIENCE_SECONDS = 30.0  # for the builder to notice, end remote agents and write its state

CANCEL = "cancel.json"
GRACE = "grace.json"  # shutdown time in seconds that the ranks reported
POLL_SECONDS = {True: 0.5, False: 5.0}  # poll interval, by whether the directory is local


def request_cancel(path: str) -> None:
    """Ask the builder of `path` to stop; trainings save a checkpoint."""
    storage.write_bytes(
        storage.join(path, LOGS, CANCEL), json.dumps({"asked": time.time()}).encode()
    )


def cancel_requested(path: str) -> bool:
    """Check whether the builder of `path` was asked to stop."""
    return storage.has_file(storage.join(path, LOGS, CANCEL))


def clear_requests(path: str) -> None:
    """Delete the requests and reported shutdown times of an earlier attempt."""
    for name in {CANCEL, GRACE}.intersection(storage.list_names(storage.join(path, LOGS))):
        storage.remove_file(storage.join(path, LOGS, name))


class CancelPoll:
    """Rate-limited check for a cancel request."""

    def __init__(self, path: str) -> None:
        # fence of the builder's ranks; a call raises SupersededError if another launch has taken
        # over
        self.fence = Fence()
        self._file = storage.join(path, LOGS, CANCEL)
        self._seconds = POLL_SECONDS[storage.is_local(path)]
        self._next = time.monotonic() + self._seconds

    def __call__(self) -> bool:
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._seconds
        self.fence.check()
        return storage.has_file(self._file)


def cancel(path: str, report: Callable[[str], None]) -> dict[str, Any]:
    """Stop the builder of `path` and wait for it; return `artifact`, `state` and `checkpoint`.

    Raises:
        UsageError: no process builds there.
        DataError: the builder does not end, and runs on another host or cannot be killed.
    """
    builder = holder(path)
    if builder is None:
        state = "missing"
        if storage.exists(path):
            state = "finished" if artifact.is_artifact(path) else "unfinished"
        raise UsageError(
            f"no process is building {path} (state: {state}); to continue a training, run "
            f"{shell_command('resume', path)}"
        )
    grace = _grace(path)
    request_cancel(path)
    report(f"requested {builder} to end; trainings have {grace:.0f} s to save a checkpoint")
    facts, seconds = lock.holder_facts(path), grace + PATIENCE_SECONDS
    wait_or_kill(path, builder, lambda: holder(path) is not None, facts, seconds, report)
    clear_requests(path)
    return cancel_result(path, "finished" if artifact.is_artifact(path) else "cancelled")


def wait_or_kill(
    path: str,
    builder: str,
    runs: Callable[[], bool],
    facts: Mapping[str, Any],
    seconds: float,
    report: Callable[[str], None],
) -> bool:
    """Wait until a process that was asked to end has ended; after `seconds` kill it, return True.

    Args:
        path: directory that the process holds, for messages.
        builder: description of the process, for messages.
        facts: identity of the process; only a process of this identity is killed.

    Raises DataError: the process is on another host, or survives SIGKILL.
    """

    def has_ended() -> bool:
        return wait_until(lambda: not runs(), seconds, POLL_SECONDS[storage.is_local(path)] / 2)

    if has_ended():
        return False
    if not lock.is_running(facts):
        raise DataError(f"{path} is still held by {lock.holder(path) or builder}; end it there")
    report(f"it did not end in {seconds:.0f} s and is killed, with all that it has started")
    try:
        # The kernel kills its ranks, and agents lose their link.
        lock.send_signal(facts, signal.SIGKILL)
    except PermissionError:
        raise DataError(
            f"{path} is still held by {builder} of another account; ask there"
        ) from None
    if not has_ended():
        raise DataError(
            f"{path} is still held by {builder}, which cannot be killed; run `cloze doctor`"
        )
    return True


def cancel_result(path: str, state: str = "cancelled") -> dict[str, Any]:
    """Return the result of a cancellation: `artifact`, `state` and the newest `checkpoint`."""
    steps = checkpoints.complete_steps(path)
    return {"artifact": path, "state": state, "checkpoint": steps[-1] if steps else None}


def holder(path: str) -> str | None:
    """Return a description of the process that builds at `path`; None if there is none."""
    builder = lock.holder(path)
    if not builder or not storage.is_local(path):
        return builder or None
    facts = lock.written_facts(path)
    is_remote = bool(facts) and not lock.is_this_machine(facts)
    # file systems may hide other hosts' locks
    return builder if is_remote or is_locked(path) else None


def _grace(path: str) -> float:
    """Return the longest time that the builder may take to save, in seconds."""
    execution, reported = Execution(), event_files.read_json(storage.join(path, LOGS, GRACE))
    with suppress(DataError):
        execution = Execution.model_validate(Job.read(storage.join(path, LOGS, JOB)).execution)
    seconds = float(reported["seconds"]) if reported is not None else 0.0
    return max(execution.min_grace_seconds, seconds)
