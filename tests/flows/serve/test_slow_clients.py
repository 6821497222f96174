"""A client that is slow, or half gone, loses its connection: also after a first request."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from cloze.flows.serve.http_limits import LimitsMiddleware, TimedProtocol

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"
PATIENCE = 15.0  # seconds until a connection counts as kept for good


class Quick(TimedProtocol):
    header_seconds = 0.4


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
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
