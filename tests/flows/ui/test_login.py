"""Who is let in by the servers of `cloze ui`, and who may read the login."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from cloze.flows.run import server_addresses
from cloze.flows.ui import login
from cloze.flows.ui.dashboard import application
from tests.slices import few

PORT = 8090
USER = "cloze:a-long-secret"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    app = application(tmp_path_factory.mktemp("runs"), PORT, login=USER)
    return TestClient(app, base_url=f"http://127.0.0.1:{PORT}")


def basic(text: str) -> dict[str, str]:
    return {"Authorization": f"Basic {b64encode(text.encode()).decode()}"}


@pytest.mark.parametrize("path", ["/", "/metrics", "/%2e/", "//", "/health/", "/cloze-login/x"])
def test_without_the_login_nothing_is_told(page: TestClient, path: str) -> None:
    assert page.get(path).status_code == 401
    assert page.post(path).status_code == 401


def test_the_login_opens_as_header_and_as_cookie(page: TestClient) -> None:
    assert page.get("/", headers=basic(USER)).status_code == 200
    cookie = f"{login.COOKIE}={login.key_of(USER)}"
    assert page.get("/metrics", headers={"Cookie": cookie}).status_code == 200
    assert page.get("/health").status_code == 200


@given(st.text(max_size=30).filter(lambda text: text != USER))
def test_no_other_login_opens(page: TestClient, text: str) -> None:
    assert page.get("/", headers=basic(text)).status_code == 401
    cookie = f"{login.COOKIE}={b64encode(text.encode()).decode()}"
    assert page.get("/", headers={"Cookie": cookie}).status_code == 401


@pytest.mark.parametrize("header", ["Basic", "Basic ", "Bearer x", "", " ", "Basic \u00e4\u00f6"])
def test_a_malformed_header_is_no_login(page: TestClient, header: str) -> None:
    sent = {"Authorization": header.encode("latin-1")}
    assert page.get("/", headers=sent).status_code == 401  # type: ignore[arg-type]


def test_the_page_that_logs_in_says_nothing_and_runs_only_its_script(page: TestClient) -> None:
    answer = page.get(login.LOGIN_PATH)
    assert answer.status_code == 200
    assert login.key_of(USER) not in answer.text
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_another_name_is_refused_before_the_login(page: TestClient) -> None:
    assert page.get("/", headers={**basic(USER), "Host": "evil.example"}).status_code == 403


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o002])
def test_the_login_is_the_owners_and_stays(
    tmp_path: Path, mask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_SERVER_API_AUTH_STRING", raising=False)
    before = os.umask(mask)
    try:
        first = login.create(tmp_path)
        path = tmp_path / server_addresses.LOGIN
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert login.create(tmp_path) == first
        path.chmod(0o644)  # others may have read it
        second = login.create(tmp_path)
        assert second != first
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(before)
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "team:own")
    assert login.create(tmp_path) == "team:own"


def test_clients_take_the_login_only_for_the_servers_that_it_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    here = "http://127.0.0.1:4200/api"
    monkeypatch.setattr(server_addresses, "servers", lambda runs: {"api": here})
    (tmp_path / server_addresses.SERVERS).mkdir()
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
        monkeypatch.setenv(name, "x")  # restored afterwards
        monkeypatch.delenv(name)
    assert server_addresses.api(tmp_path) is None  # another account's
    (tmp_path / server_addresses.SERVERS / server_addresses.LOGIN).write_text(USER)
    monkeypatch.setenv("PREFECT_API_URL", "https://team.example/api")
    assert server_addresses.api(tmp_path) == "https://team.example/api"
    assert "PREFECT_API_AUTH_STRING" not in os.environ
    monkeypatch.delenv("PREFECT_API_URL")
    assert server_addresses.api(tmp_path) == here
    assert os.environ["PREFECT_API_AUTH_STRING"] == USER


@pytest.mark.parametrize(
    ("name", "text"),
    few(
        [
            ("prefect.toml", '[api]\nurl = "http://team.example/api"\n'),
            ("pyproject.toml", '[tool.prefect.api]\nurl = "http://team.example/api"\n'),
            (".env", "PREFECT_API_URL=http://team.example/api\n"),
        ],
        "prefect.toml",
    ),
)
def test_a_server_in_prefects_own_files_is_known(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    code = (
        "from pathlib import Path; from cloze.flows.run import server_addresses as s;"
        "print(s.api(Path('runs')))"
    )
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**clean, "PREFECT_HOME": str(tmp_path / "home")},
    )  # fmt: skip
    assert done.stdout.strip() == "http://team.example/api"


def talk(*sent: tuple[float, str]) -> list[dict[str, Any]]:
    """What an application that waits for two messages tells a websocket, which sends each after so
    many seconds.
    """
    told: list[dict[str, Any]] = []
    messages = iter(sent)

    async def receive() -> dict[str, Any]:
        if not told:
            return {"type": "websocket.connect"}
        seconds, text = next(messages, (0.0, ""))
        await asyncio.sleep(seconds)
        if not text:
            return {"type": "websocket.disconnect", "code": 1000}
        return {"type": "websocket.receive", "text": text}

    async def send(message: Any) -> None:
        told.append(dict(message))

    async def application(scope: Any, receive: Any, send: Any) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.accept()
        with contextlib.suppress(WebSocketDisconnect):
            for _ in range(2):
                await socket.send_text(await socket.receive_text())

    scope = {"type": "websocket", "path": "/", "headers": [], "query_string": b"", "scheme": "ws"}
    middleware = login.LoginMiddleware(application, USER, checks=False)
    asyncio.run(middleware({**scope, "server": ("h", 1)}, receive, send))
    return told


def test_a_websocket_that_does_not_log_in_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "FIRST_SECONDS", 0.05)
    assert [each["type"] for each in talk((5, "a"))] == ["websocket.accept", "websocket.close"]


def test_a_websocket_may_be_silent_after_its_first_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "FIRST_SECONDS", 0.1)
    assert [each.get("text") for each in talk((0, "a"), (0.3, "b"))] == [None, "a", "b"]
