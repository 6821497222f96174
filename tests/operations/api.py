"""Prefect's REST API, as its UI calls it."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def request(api: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """The answer to a GET, or with a body to a POST."""
    data = None if body is None else json.dumps(body).encode()
    call = urllib.request.Request(
        f"{api}{path}", data=data, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(call, timeout=30) as response:
        return json.load(response)


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
