"""Files of `cloze ui` in `RUNS/.servers`, by which other commands find the servers.

    state.json      addresses and services (below), written at every change
    _lock           held by the supervisor while it lives
    NAME.log        output of a server
    prefect/        Prefect's home: database and settings, separate from the user's own

state.json: {"pid", "state": "starting|up|ending", "prefect", "mlflow", "page" (addresses), "api",
"deployments": […], "services": {NAME: {"state": "waiting|starting|up|silent|broken|ended", "pid"
with its identity, "since", "restarts", "last", "log", "address", "health", "port", "title"}}};
`since` in Unix seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloze.core import storage
from cloze.core.artifacts import lock
from cloze.flows.run import server_addresses


def directory(runs: Path) -> Path:
    """Return the directory of the servers of a runs directory."""
    return runs / server_addresses.SERVERS


def write(runs: Path, state: Mapping[str, Any]) -> None:
    """Write `state.json`."""
    path = directory(runs) / server_addresses.STATE
    storage.write_bytes(str(path), json.dumps(state, indent=1).encode())


def is_running(runs: Path) -> bool:
    """Return whether a supervisor of these runs is alive on this machine."""
    return lock.is_locked(str(directory(runs)))
