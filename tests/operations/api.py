"""Prefect's REST API, as its UI calls it."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path
from typing import Any

KEYS: dict[str, str] = {}  # logins of running `cloze ui`s, by the address of their API
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def log_in(api: str, file: str) -> None:
    """Send the login in that file with each request to that API."""
    KEYS[api] = b64encode(Path(file).read_bytes()).decode()


def answer(call: urllib.request.Request) -> Any:
    """The answer; while the server's database is busy (503) it is asked again, as clients do."""
    for pause in (0.5, 1, 2, 4, 8, None):
        try:
            with urllib.request.urlopen(call, timeout=200) as response:
                return json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            if error.code != 503 or pause is None:
                raise
            time.sleep(pause)
    return None


def request(api: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """The answer to a GET, or with a body to a POST."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if api in KEYS:
        headers["Authorization"] = f"Basic {KEYS[api]}"
    return answer(urllib.request.Request(f"{api}{path}", data=data, headers=headers))


def trigger(api: str, deployment: str, **parameters: Any) -> str:
    """Start a run of `flow/deployment`; its id."""
    found = request(api, f"/deployments/name/{deployment}")
    return str(
        request(api, f"/deployments/{found['id']}/create_flow_run", {"parameters": parameters})[
            "id"
        ]
    )


def state(api: str, flow_run: str) -> str:
    """The type of a flow run's state, such as RUNNING."""
    return str(request(api, f"/flow_runs/{flow_run}")["state"]["type"])
