"""What `cloze ui` prints when its time is up, whatever of it has started by then."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from uvicorn import Config

from cloze.core.processes import free_ports
from cloze.flows.ui import dashboard
from cloze.flows.ui.command import show
from cloze.flows.ui.timed_protocol import AnnouncingServer


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


@pytest.mark.parametrize("is_taken", [False, True])
def test_an_address_is_announced_when_it_answers(tmp_path: Path, is_taken: bool) -> None:
    """It was printed before the server listened, and also if it never did."""
    (port,) = free_ports(1)
    announced = threading.Event()

    def announce() -> None:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        announced.set()
        server.should_exit = True

    def run() -> None:
        with contextlib.suppress(SystemExit):
            server.run()

    settings = Config(dashboard.application(tmp_path, port), port=port, log_level="critical")
    server = AnnouncingServer(settings, announce)
    with contextlib.ExitStack() as stack:
        if is_taken:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(60)
    assert announced.is_set() != is_taken
