"""Asking the builder of a directory to end, wherever it runs: a file in the directory's logs that its head looks for.

`_logs/cancel.json` works across machines, where a signal does not, and with every launcher.
"""

from __future__ import annotations

import json
import time

from pipeline.core import storage
from pipeline.core.worker import LOGS

CANCEL = "cancel.json"
LOOK_SECONDS = {True: 0.5, False: 5.0}  # between two looks, by whether the directory is local


def ask(path: str) -> None:
    """Ask whoever builds at `path` to end, trainings with a checkpoint."""
    storage.write_bytes(storage.join(path, LOGS, CANCEL), json.dumps({"asked": time.time()}).encode())


def asked(path: str) -> bool:
    """Whether the builder of the directory was asked to end."""
    return storage.exists(storage.join(path, LOGS, CANCEL))


def clear(path: str) -> None:
    """What was asked of an earlier try is no concern of this one."""
    storage.remove(storage.join(path, LOGS, CANCEL))


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
