"""A deployed run outlives a Prefect server that is away for a quarter of an hour."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prefect.client import base
from prefect.client.orchestration import get_client
from prefect.settings import (
    PREFECT_API_REQUEST_TIMEOUT,
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_CLIENT_RETRY_EXTRA_CODES,
    temporary_settings,
)

from cloze.core.errors import ClozeError
from cloze.flows.prefect import client as connection
from cloze.flows.prefect import flow_state, sweep
from cloze.flows.prefect.environment import PREFECT_YAML

AWAY_SECONDS = 800.0  # the pauses are random by a fifth


class Server(ThreadingHTTPServer):
    """A server that is away in one of three ways until the clock says that it is back."""

    daemon_threads = True
    seconds, back, way, calls = 0.0, 0.0, "503", 0

    def handle_error(self, request: Any, client_address: Any) -> None: ...


class Answers(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        is_away = 0 < self.server.seconds < self.server.back or self.server.back == -1
        self.server.calls += 1
        if is_away and self.server.way == "silent":
            time.sleep(2)
        if is_away and self.server.way == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()
            return
        is_refused = is_away and self.server.way.isdecimal()
        self.send_response(int(self.server.way) if is_refused else 200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(b"true")

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    found = Server(("127.0.0.1", 0), Answers)
    threading.Thread(target=found.serve_forever, daemon=True).start()

    def sleep(seconds: float) -> None:
        found.seconds += seconds

    monkeypatch.setattr(base, "time", SimpleNamespace(sleep=sleep))
    yield found
    found.shutdown()
    found.server_close()


def settings(server: Server) -> dict[Any, Any]:
    """Those of each deployment's runs."""
    entries = yaml.safe_load(PREFECT_YAML.read_text())["deployments"]
    (values,) = {str(each["work_pool"]["job_variables"]["env"]): each for each in entries}.values()
    given = values["work_pool"]["job_variables"]["env"]
    return {
        PREFECT_API_URL: f"http://127.0.0.1:{server.server_port}/api",
        PREFECT_CLIENT_MAX_RETRIES: int(given["PREFECT_CLIENT_MAX_RETRIES"]),
        PREFECT_CLIENT_RETRY_EXTRA_CODES: given["PREFECT_CLIENT_RETRY_EXTRA_CODES"],
    }


@pytest.mark.parametrize("way", ["502", "503", "504", "reset"])
def test_a_call_waits_for_a_server_that_is_away(server: Server, way: str) -> None:
    server.way, server.back, server.seconds = way, AWAY_SECONDS, 1.0
    with temporary_settings(settings(server)), get_client(sync_client=True) as client:
        assert client.hello().status_code == 200
    assert AWAY_SECONDS <= server.seconds < 2500


def test_a_server_that_stays_away_is_given_up(server: Server) -> None:
    server.way, server.back = "503", -1.0
    with (
        temporary_settings(settings(server)),
        get_client(sync_client=True) as client,
        pytest.raises(Exception, match="503"),
    ):
        client.hello()
    assert server.seconds < 2500


def test_looks_at_the_own_state_and_its_last_one_do_not_wait_long(server: Server) -> None:
    """A process that was asked to end may be killed in half a minute."""
    server.way, server.back = "503", -1.0
    with temporary_settings(settings(server)):
        assert flow_state.current().is_running()
        flow_state.write(flow_state.current())
    assert server.seconds < 40


@pytest.mark.parametrize("way", ["503", "reset", "silent"])
@pytest.mark.parametrize("what", ["connect", "sweep"])
def test_a_command_ends_in_a_sentence_soon(
    server: Server, way: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cloze deploy`, `doctor` and the sweep of `cloze ui`: a server that is stopped is silent."""
    monkeypatch.setitem(connection.LIMITS, PREFECT_API_REQUEST_TIMEOUT, 0.2)
    server.way, server.back = way, -1.0
    api = f"http://127.0.0.1:{server.server_port}/api"
    with pytest.raises(ClozeError, match=rf"Prefect at {api}: .*(503|Read)"):
        if what == "connect":
            with connection.connected(api):
                pass
        else:
            sweep.sweep(tmp_path, api)
    assert server.calls <= 3
    assert server.seconds < 30


def test_the_toys_of_the_tests_hold_out_as_long() -> None:
    path = Path(__file__).parents[2] / "operations" / "toys.yaml"
    toys = yaml.safe_load(path.read_text())["deployments"][0]["work_pool"]["job_variables"]
    ours = yaml.safe_load(PREFECT_YAML.read_text())["deployments"][0]["work_pool"]["job_variables"]
    assert toys == ours
