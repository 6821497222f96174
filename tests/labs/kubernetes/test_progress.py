"""Progress of a TrainJob, which the first pod sends to Trainer: what is sent, and how."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.flows.launch.event_files import EventWriter
from cloze.labs.kubernetes import manifest, progress
from cloze.labs.kubernetes.progress import Progress

NOW = 1_796_000_000.0
TEXT = {"type": "string", "minLength": 1, "maxLength": 64}
# `status` of a TrainJob, as its custom resource has it
STATUS = {
    "type": "object", "additionalProperties": False, "required": ["lastUpdatedTime"],
    "properties": {
        "lastUpdatedTime": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"},
        "progressPercentage": {"type": "integer", "minimum": 0, "maximum": 100},
        "estimatedRemainingSeconds": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
        "metrics": {"type": "array", "maxItems": 256, "items": {
            "type": "object", "additionalProperties": False, "required": ["name", "value"],
            "properties": {"name": TEXT, "value": TEXT},
        }},
    },
}  # fmt: skip


def step(done: float, total: float | None = 200, **values: Any) -> list[dict[str, Any]]:
    """The events of rank 0 for a step, between those of others."""
    return [
        {"node": 0, "waiting": "for the others"},
        {"rank": 1, "progress": [9, 9, "steps", {}]},
        {"rank": 0, "progress": [done, total, "steps", {"loss": 1}]},
        {"rank": 0, "metrics": {"step": done, "time": NOW, **values}},
    ]


def test_percent_time_left_and_metrics_are_those_of_rank_0() -> None:
    own = Progress()
    assert own.see(step(20, loss=9.0), NOW)
    assert own.see(step(50, loss=2.5, note="slow"), NOW + 60)
    assert not own.see(
        [{"rank": 1, "progress": [9, 9, "steps", {}]}, {"node": 0, "done": True}], NOW
    )
    assert own.status(NOW + 60)["trainerStatus"] == {
        "lastUpdatedTime": "2026-11-30T00:54:20Z",
        "progressPercentage": 25,
        "estimatedRemainingSeconds": 300,  # 150 steps at half a step a second
        "metrics": [{"name": "step", "value": "50"}, {"name": "loss", "value": "2.5"}],
    }


numbers = st.one_of(st.integers(-5, 10**12), st.floats(allow_nan=True, allow_infinity=True))
names = st.text(min_size=1, max_size=90)


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 10**9), st.none() | st.integers(0, 10**9),
                  st.dictionaries(names, numbers, max_size=400)),
        max_size=4,
    ),
    pauses=st.lists(st.floats(0, 1e6), min_size=4, max_size=4),
)  # fmt: skip
def test_whatever_is_reported_the_resource_takes_it(
    steps: list[tuple[int, int | None, dict[str, float]]], pauses: list[float]
) -> None:
    own, now = Progress(), NOW
    for (done, total, values), pause in zip(steps, pauses, strict=False):
        now += pause
        own.see(
            [{"rank": 0, "progress": [done, total, "steps", {}]}, {"rank": 0, "metrics": values}],
            now,
        )
    jsonschema.validate(json.loads(json.dumps(own.status(now)))["trainerStatus"], STATUS)


class Trainer(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls.append((self.path, self.headers["Authorization"], body))  # type: ignore[attr-defined]
        self.send_response(200 if len(self.server.calls) != 2 else 503)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HTTPServer]:
    """Trainer's server, with a certificate of its own, and what it gives a pod."""
    certificate, key = tmp_path / "ca.crt", tmp_path / "key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"],
        check=True, capture_output=True,
    )  # fmt: skip
    server = HTTPServer(("127.0.0.1", 0), Trainer)
    server.calls = []  # type: ignore[attr-defined]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "token").write_text("t0ken\n")
    monkeypatch.setenv(progress.URL, f"https://localhost:{server.server_port}/trainjobs/x/status")
    monkeypatch.setenv(progress.CERTIFICATE, str(certificate))
    monkeypatch.setenv(progress.TOKEN, str(tmp_path / "token"))
    yield server
    server.shutdown()
    server.server_close()


def test_what_the_agent_writes_arrives_and_a_refusal_is_said_once(
    trainer: HTTPServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.01)
    agent, steps = EventWriter(str(tmp_path / "node0")), iter(range(1, 6))

    def goes_on() -> bool:
        if (done := next(steps, None)) is not None:
            agent.send(step(done, 5, loss=1 / done))
        return done is not None

    progress.follow(str(tmp_path), goes_on)
    calls = trainer.calls  # type: ignore[attr-defined]
    assert [body["trainerStatus"]["progressPercentage"] for *_, body in calls] == [
        20,
        40,
        60,
        80,
        100,
    ]
    assert {(path, key) for path, key, _ in calls} == {("/trainjobs/x/status", "Bearer t0ken")}
    assert capsys.readouterr().out.count("Kubeflow Trainer has no progress of this job") == 1


@pytest.mark.parametrize(
    ("rank", "address", "sends"),
    [("0", "https://a", True), ("1", "https://a", False), ("0", "", False)],
)
def test_the_first_pod_alone_sends_and_only_where_trainer_takes_it(
    rank: str, address: str, sends: bool, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(  # ends when both have closed their output
        ["sh", "-c", manifest.AGENT, str(python), "/launch", "job"],
        env={"PATH": "/usr/bin:/bin", "PET_NODE_RANK": rank, progress.URL: address},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    expected = [f"-m cloze.flows.launch.agent /launch {rank}"]
    expected += ["-m cloze.labs.kubernetes.progress /launch"] * sends
    assert sorted(done.stdout.splitlines()) == expected
