"""Asking the builder of a directory to end, wherever it runs: a file in the directory's logs that its head looks for.

`_logs/cancel.json` works across machines, where a signal does not, and with every launcher.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from flows.launchers import mailbox
from pipeline.core import artifact, checkpoints, storage
from pipeline.core.errors import DataError, UsageError
from pipeline.core.execution import Execution
from pipeline.core.lock import LOCK, is_held
from pipeline.core.worker import JOB, LOGS, Job

PATIENCE_SECONDS = 30.0  # for the builder to look, to end agents on other machines, and to write its end
_HOLDER = re.compile(r"process (\d+) on (\S+)")

CANCEL = "cancel.json"
GRACE = "grace.json"  # the seconds that its ranks would need to stop, where they have told that
LOOK_SECONDS = {True: 0.5, False: 5.0}  # between two looks, by whether the directory is local


def ask(path: str) -> None:
    """Ask whoever builds at `path` to end, trainings with a checkpoint."""
    storage.write_bytes(storage.join(path, LOGS, CANCEL), json.dumps({"asked": time.time()}).encode())


def asked(path: str) -> bool:
    """Whether the builder of the directory was asked to end."""
    return storage.exists(storage.join(path, LOGS, CANCEL))


def clear(path: str) -> None:
    """What was asked of an earlier try, or told by it, is no concern of this one."""
    for name in (CANCEL, GRACE):
        storage.remove(storage.join(path, LOGS, name))


class Asked:
    """Whether the builder of a directory was asked to end; looks only now and then."""

    def __init__(self, path: str) -> None:
        self._file = storage.join(path, LOGS, CANCEL)
        self._seconds = LOOK_SECONDS[storage.is_local(path)]
        self._next = time.monotonic() + self._seconds

    def __call__(self) -> bool:
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._seconds
        return storage.exists(self._file)


def cancel(path: str, told: Callable[[str], None]) -> dict[str, Any]:
    """End whoever builds the artifact at `path`, and wait for it; what is there then: `artifact`, `state`, `checkpoint`.

    Args:
        told: hears what is waited for.

    Raises:
        UsageError: nobody builds there.
        DataError: the builder does not end, and runs on another machine.
    """
    holder = _holder(path)
    if holder is None:
        state = "finished" if artifact.is_artifact(path) else "unfinished" if storage.exists(path) else "not there"
        raise UsageError(f"nobody builds {path} (it is {state}); `cloze resume {path}` goes on with a training that was begun")
    grace = _grace(path)
    ask(path)
    told(f"{holder} is asked to end; trainings have {grace:.0f} s to save a checkpoint")
    if not _let_go(path, grace + PATIENCE_SECONDS):
        known = _HOLDER.search(holder)
        if known is None or known[2] != socket.gethostname():
            raise DataError(f"{path} is still being built by {holder}; end it there")
        told(f"it did not end in {grace + PATIENCE_SECONDS:.0f} s and is killed, with all that it has started")
        with suppress(ProcessLookupError):
            os.kill(
                int(known[1]), signal.SIGKILL
            )  # the kernel kills its ranks with it, and agents end as their connection does
        if not _let_go(path, PATIENCE_SECONDS):
            raise DataError(f"{path} is still held by {holder}, which cannot be killed; look at `cloze doctor`")
    clear(path)
    saved = checkpoints.complete_steps(path)
    state = "finished" if artifact.is_artifact(path) else "cancelled"
    return {"artifact": path, "state": state, "checkpoint": saved[-1] if saved else None}


def _holder(path: str) -> str | None:
    """Who builds at `path`, in words; None: nobody."""
    name = storage.join(path, LOCK)
    if not storage.exists(name):
        return None
    try:
        holder = storage.read_text(name).strip()
    except DataError:  # it ends just now
        return None
    if not storage.is_local(path):
        return str(json.loads(holder).get("holder"))
    elsewhere = (found := _HOLDER.search(holder)) is not None and found[2] != socket.gethostname()
    return holder if elsewhere or is_held(path) else None  # the file system need not tell of other machines' locks


def _let_go(path: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while _holder(path) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def _grace(path: str) -> float:
    """Seconds that what is built there may take to save."""
    usual, told = Execution(), mailbox.get(storage.join(path, LOGS, GRACE))
    with suppress(DataError):
        usual = Execution.model_validate(Job.read(storage.join(path, LOGS, JOB)).execution)
    return max(usual.least_grace, float(told["seconds"]) if told is not None else 0.0)
