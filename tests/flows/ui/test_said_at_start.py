"""What `cloze ui` prints when its time is up, whatever of it has started by then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cloze.flows.ui.command import show


def printed(place: Path, deployments: list[str], prefect_is: str) -> str:
    (place / "login").write_text("cloze:secret")
    now: dict[str, Any] = {
        "page": "http://127.0.0.1:1",
        "prefect": "http://127.0.0.1:2",
        "mlflow": "http://127.0.0.1:3",
        "api": "http://127.0.0.1:2/api",
        "login": str(place / "login"),
        "deployments": deployments,
        "services": {
            "prefect": {"title": "Prefect", "state": prefect_is, "log": f"{place}/prefect.log"}
        },
    }
    screen = Console(width=200)
    with screen.capture() as text:
        show(now, screen, False)
    return text.get()


@pytest.mark.parametrize("state", ["starting", "waiting", "crashed"])
def test_deployments_are_not_counted_while_they_are_unknown(tmp_path: Path, state: str) -> None:
    text = printed(tmp_path, [], state)
    assert f"Prefect is {state}, see {tmp_path}/prefect.log" in text
    assert "0 deployments" not in text


def test_deployments_are_named(tmp_path: Path) -> None:
    assert "2 deployments: data, full-run\n" in printed(tmp_path, ["data", "full-run"], "up")
