"""Addresses of the Prefect and MLflow servers: from the environment, or from `cloze ui`.

Imports nothing heavy, because the command line checks here whether to run with Prefect. The files
of `cloze ui` in `RUNS/.servers`:

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
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from cloze.core import places, storage
from cloze.core.artifacts import lock
from cloze.core.processes import process_state
from cloze.core.records import read_record

SERVERS, STATE = ".servers", "state.json"  # below the runs; locked while `cloze ui` runs
LOGIN = "login"  # there: `user:password`, which only the owner reads
ANSWER_SECONDS = 3.0
UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"  # in the messages of OpenSSL
TRUST = "set SSL_CERT_FILE and REQUESTS_CA_BUNDLE to the file with your CA's certificate"


def directory(runs: Path) -> Path:
    """Return the directory of the servers of a runs directory."""
    return runs / SERVERS


def write(runs: Path, state: Mapping[str, Any]) -> None:
    storage.write_bytes(str(directory(runs) / STATE), json.dumps(state, indent=1).encode())


def is_running(runs: Path) -> bool:
    """Return whether a supervisor of these runs is alive on this machine."""
    return lock.is_locked(str(directory(runs)))


def servers(runs: Path) -> dict[str, Any]:
    """Return the addresses that `cloze ui` has written; empty if it is not running."""
    with suppress(OSError):
        if is_running(runs):
            return read_record((directory(runs) / STATE).read_bytes()) or {}
    return {}


def observed(servers: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the services as they are now; their supervisor may be too stopped to note an end."""
    return {
        name: {**service, "state": _observed_state(service)}
        for name, service in servers.get("services", {}).items()
    }


def _observed_state(service: Mapping[str, Any]) -> str:
    recorded = str(service["state"])
    if recorded != "up" or "start" not in service:
        return recorded
    if not lock.is_running(service):
        return "ended"
    health = service.get("health")
    is_silent = not answers(health) if health else process_state(service["pid"]) == "T"
    return "silent" if is_silent else recorded


def api(runs: Path) -> str | None:
    """Return the URL of the Prefect API: from the environment, the profile, or `cloze ui`.

    The login of `cloze ui` is set for this process's clients. Its servers are unknown to accounts
    that may not read it.
    """
    own = servers(runs).get("api")
    url = os.environ.get("PREFECT_API_URL") or _of_profile() or own
    if url and url == own:
        with suppress(OSError):
            login = (directory(runs) / LOGIN).read_text(encoding="utf-8")
            os.environ.setdefault("PREFECT_API_AUTH_STRING", login)
            return str(url)
        return os.environ.get("PREFECT_API_URL")
    return str(url).rstrip("/") if url else None


def _of_profile() -> str | None:
    home = places.local_setting("PREFECT_HOME", "~/.prefect")
    settings = {home / "profiles.toml": "PREFECT_API_URL", Path(".env"): "PREFECT_API_URL"}
    settings |= {Path("prefect.toml"): "[api]", Path("pyproject.toml"): "[tool.prefect.api]"}
    for path, word in settings.items():
        with suppress(OSError, UnicodeDecodeError):
            if word in path.read_text(encoding="utf-8"):
                # the import lasts a second
                from prefect.settings import PREFECT_API_URL

                url: str | None = PREFECT_API_URL.value()
                return url
    return None


def why_silent(url: str) -> str | None:
    """Return why no server answers a GET of `url`; None: one answers, also with 401 or 403."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS):
            return None
    except urllib.error.HTTPError as error:
        return None if error.code in (401, 403) else f"answers with status {error.code}"
    except (OSError, ValueError, HTTPException) as error:  # the last: of a malformed address
        is_untrusted = UNTRUSTED in str(error)
        return f"has an untrusted certificate; {TRUST}" if is_untrusted else "does not answer"


def answers(url: str) -> bool:
    """Return whether a server answers a GET of `url`."""
    return why_silent(url) is None


def mlflow(runs: Path) -> str | None:
    """Return the address of the MLflow server; None if none is known."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or ""
    return uri.rstrip("/") if uri.startswith("http") else servers(runs).get("mlflow")
