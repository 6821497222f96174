"""Where servers are: those that `cloze ui` has started for a directory of runs, or those that the environment names.

Imports nothing heavy: the command line asks here whether there is a Prefect to run with.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.core.lock import is_held

SERVERS, STATE = ".servers", "state.json"  # below the runs; locked while `cloze ui` lives
ANSWER_SECONDS = 3.0


def servers(runs: Path) -> dict[str, Any]:
    """What `cloze ui` says of the servers that run; empty where none do."""
    with suppress(OSError, ValueError):
        if is_held(str(runs / SERVERS)):
            state = json.loads((runs / SERVERS / STATE).read_text(encoding="utf-8"))
            return state if isinstance(state, dict) else {}
    return {}


def api(runs: Path) -> str | None:
    """The API of the Prefect server that is to be used: the environment's, that of the user's profile, or that of `cloze ui`."""
    named = os.environ.get("PREFECT_API_URL") or _of_profile() or servers(runs).get("api")
    return str(named).rstrip("/") if named else None


def _of_profile() -> str | None:
    home = Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect")
    with suppress(OSError):
        if "PREFECT_API_URL" in (home / "profiles.toml").read_text(encoding="utf-8"):
            from prefect.settings import PREFECT_API_URL  # takes a second, so only where it is worth it

            named: str | None = PREFECT_API_URL.value()
            return named
    return None


def answers(api: str) -> bool:
    """Whether a Prefect server is at that API just now."""
    try:
        with urllib.request.urlopen(f"{api}/health", timeout=ANSWER_SECONDS):
            return True
    except urllib.error.HTTPError as error:
        return error.code in (401, 403)  # it wants the authentication that Prefect's client brings
    except (OSError, ValueError):
        return False


def mlflow(runs: Path) -> str | None:
    """The address of MLflow's pages, where a server is known."""
    named = os.environ.get("MLFLOW_TRACKING_URI") or ""
    return named.rstrip("/") if named.startswith("http") else servers(runs).get("mlflow")


def page(runs: Path) -> str | None:
    """The address of the page of runs."""
    return servers(runs).get("page")
