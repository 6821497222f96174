"""What `cloze ui` keeps in `RUNS/.servers`, and how other commands find the servers that run.

    state.json      what runs (below), written whole at every change
    _lock           held by the supervisor as long as it lives
    NAME.log        a server's output
    prefect/        Prefect's home: its database and settings, apart from the user's own

state.json: {"pid", "started", "state": "starting|up|ending", "prefect", "mlflow", "page" (addresses), "api" (Prefect's), "deployments": […],
"services": {NAME: {"state": "starting|up|silent|waiting|given up|ended", "pid", "started", "since", "restarts", "log", "address", "last": …}},
"swept": {"at", "mended": […], "error"}}; moments in Unix seconds, `started` is the kernel's of that process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.graph import addresses
from pipeline.core import lock, storage


def directory(runs: Path) -> Path:
    """Where the servers of a directory of runs keep their state."""
    return runs / addresses.SERVERS


def read(runs: Path) -> dict[str, Any]:
    """The newest state that was written; empty if there is none. Whether it still holds says `is_running`."""
    try:
        state = json.loads((directory(runs) / addresses.STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def write(runs: Path, state: Mapping[str, Any]) -> None:
    storage.write_bytes(str(directory(runs) / addresses.STATE), json.dumps(state, indent=1).encode())


def is_running(runs: Path) -> bool:
    """Whether a supervisor of these runs lives on this machine."""
    return lock.is_held(str(directory(runs)))


def running(runs: Path) -> dict[str, Any]:
    """The state of the servers that run now; empty if none do."""
    return addresses.servers(runs)
