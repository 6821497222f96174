"""Where Prefect's server is: by the environment, a profile, or `cloze ui`; and what answers."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from cloze.core.artifacts.lock import locked
from cloze.flows.run import server_addresses
from cloze.flows.run.server_addresses import LOGIN, SERVERS, STATE

OWN = "http://127.0.0.1:4200/api"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runs directory with what `cloze ui` writes; no address is set, and no profile is there."""
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
        monkeypatch.setenv(name, "")  # put back, whatever the test sets
        monkeypatch.delenv(name)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / SERVERS).mkdir(parents=True)
    (tmp_path / "runs" / SERVERS / STATE).write_text(json.dumps({"api": OWN, "mlflow": "m"}))
    return tmp_path / "runs"


def test_servers_count_while_their_process_runs(runs: Path) -> None:
    assert server_addresses.servers(runs) == {}
    with locked(str(runs / SERVERS)):
        assert server_addresses.servers(runs) == {"api": OWN, "mlflow": "m"}
        for damaged in ("[1]", "{", "\xff"):
            (runs / SERVERS / STATE).write_text(damaged, encoding="latin-1")
            assert server_addresses.servers(runs) == {}
        (runs / SERVERS / STATE).unlink()
        assert server_addresses.servers(runs) == {}
    assert server_addresses.servers(runs / "nowhere") == {}


def test_the_own_server_needs_its_login(runs: Path) -> None:
    """An account that may not read the login does not use the server."""
    assert server_addresses.api(runs) is None
    with locked(str(runs / SERVERS)):
        assert server_addresses.api(runs) is None
        assert "PREFECT_API_AUTH_STRING" not in os.environ
        (runs / SERVERS / LOGIN).write_text("user:word")
        assert server_addresses.api(runs) == OWN
        assert os.environ["PREFECT_API_AUTH_STRING"] == "user:word"
    assert server_addresses.api(runs) is None


def test_the_environment_comes_before_the_own_server(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (runs / SERVERS / LOGIN).write_text("user:word")
    monkeypatch.setenv("PREFECT_API_URL", "http://team:4200/api/")
    with locked(str(runs / SERVERS)):
        assert server_addresses.api(runs) == "http://team:4200/api"
        assert "PREFECT_API_AUTH_STRING" not in os.environ
        monkeypatch.setenv("PREFECT_API_URL", OWN)
        monkeypatch.setenv("PREFECT_API_AUTH_STRING", "mine:word")
        assert server_addresses.api(runs) == OWN
        assert os.environ["PREFECT_API_AUTH_STRING"] == "mine:word"
        (runs / SERVERS / LOGIN).unlink()
        assert server_addresses.api(runs) == OWN  # the user has set it


class Answer(BaseHTTPRequestHandler):
    """Answers with the status in the path."""

    def do_GET(self) -> None:
        self.send_response(int(self.path.strip("/")))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answer) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (200, None), (204, None), (401, None), (403, None),
        (404, "answers with status 404"), (500, "answers with status 500"),
    ],
)  # fmt: skip
def test_a_server_that_asks_for_a_login_answers(server: str, status: int, why: str | None) -> None:
    assert server_addresses.why_silent(f"{server}/{status}") == why
    assert server_addresses.answers(f"{server}/{status}") == (why is None)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/", "no url", "http://[", "http://nowhere.invalid/"]
)
def test_where_nothing_answers_that_is_said(url: str) -> None:
    assert server_addresses.why_silent(url) == "does not answer"


def test_a_certificate_that_is_not_trusted_is_told_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*given: object, **more: object) -> None:
        raise OSError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")

    monkeypatch.setattr(server_addresses.urllib.request, "urlopen", refuse)
    said = str(server_addresses.why_silent("https://team"))
    assert said.startswith("has an untrusted certificate; set SSL_CERT_FILE")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("http://team:5000/", "http://team:5000"),
        ("https://team", "https://team"),
        ("sqlite:///m.db", "m"),  # no server
        ("", "m"),
        (None, "m"),
    ],
)
def test_mlflow_is_the_server_that_is_set_or_the_own_one(
    runs: Path, given: str | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if given is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
    assert server_addresses.mlflow(runs) == (None if found == "m" else found)
    with locked(str(runs / SERVERS)):
        assert server_addresses.mlflow(runs) == found
