"""A client that is slow, or half gone, loses its connection: also after a first request."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from websockets.sync.client import connect

from cloze.flows.ui import dashboard, mlflow_server, prefect_server
from cloze.flows.ui.timed_protocol import TimedProtocol
from cloze.labs.serving.http.application import LimitsMiddleware

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"
PATIENCE = 15.0  # seconds until a connection counts as kept for good


class Quick(TimedProtocol):
    header_seconds = 0.4


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await asyncio.sleep(3 * Quick.header_seconds)
        await send({"type": "websocket.send", "text": "still here"})
        return
    await PlainTextResponse("ok")(scope, receive, send)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            LimitsMiddleware(answer, 100, 0.4), http=Quick, lifespan="off", log_level="critical"
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + PATIENCE
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.02)
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(10)


def whole(client: socket.socket) -> bytes:
    """An answer with its body."""
    content = b""
    while not content.endswith(b"ok"):
        content += client.recv(4096)
    return content


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([], id="nothing"),
        pytest.param([b"G"], id="a-byte"),
        pytest.param([REQUEST, b"G"], id="a-byte-after-a-request"),
        pytest.param([REQUEST, REQUEST, b"GET / HT"], id="half-a-line-after-two"),
        pytest.param([REQUEST + b"G"], id="a-byte-with-the-request"),
        pytest.param([REQUEST + REQUEST + b"GET / HTTP/1.1\r\nHost:"], id="pipelined"),
        pytest.param([POST + b"four"], id="half-a-body"),
        pytest.param([REQUEST, POST], id="no-body-after-a-request"),
    ],
)
def test_an_unfinished_request_ends(port: int, parts: list[bytes]) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        for part in parts:
            client.sendall(part)
            if part == REQUEST:
                assert b"200 OK" in whole(client)
                time.sleep(0.1)  # the server has noted the end of its answer
        while client.recv(4096):  # times out if the server keeps the connection
            pass


def test_bytes_that_trickle_in_do_not_keep_it(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        client.sendall(REQUEST)
        assert b"200 OK" in whole(client)
        time.sleep(0.1)
        deadline = time.monotonic() + PATIENCE
        with pytest.raises(ConnectionError):
            while time.monotonic() < deadline:
                client.sendall(b"G")
                time.sleep(0.05)


def test_requests_one_after_another_are_answered(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        for _ in range(4):  # longer than `header_seconds` in all
            for byte in (REQUEST[:9], REQUEST[9:]):
                client.sendall(byte)
                time.sleep(0.1)
            assert b"200 OK" in whole(client)


def test_a_websocket_stays_open(port: int) -> None:
    with connect(f"ws://127.0.0.1:{port}/") as client:
        assert client.recv(PATIENCE) == "still here"


def test_the_servers_of_the_ui_have_the_same_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: given.append(options["http"]))
    monkeypatch.setattr(uvicorn.Server, "run", lambda self: given.append(self.config.http))
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "a:b")
    dashboard.serve(tmp_path, 1)
    prefect_server.main(1)
    assert given == [TimedProtocol] * 2
    built: list[list[str]] = []
    server = SimpleNamespace(_build_uvicorn_command=lambda *_: ["python", "-m", "uvicorn", "app"])
    run = SimpleNamespace(main=lambda _: built.append(server._build_uvicorn_command(*range(7))))
    fake = SimpleNamespace(cli=SimpleNamespace(cli=run), server=server)
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", "sqlite://")
    monkeypatch.setattr(mlflow_server, "connect", lambda uri: None)
    mlflow_server.main([])
    assert built == [["python", "-m", "cloze.flows.ui.timed_protocol", "app"]]
