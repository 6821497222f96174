"""The page of all runs, from a real server: what it shows, what it hands out, and what it refuses."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from flows.night.journal import Champion, Journal
from flows.servers import state
from flows.servers.page.app import application
from flows.tracking import links
from pipeline.core import lock

EVIL = '<script>alert("x")</script>'


class Site:
    """The page of `runs` on a port of this machine."""

    def __init__(self, runs: Path, port: int) -> None:
        self.runs, self.port = runs, port

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
        """Status, headers and body; the path is sent as it stands."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read().decode()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    base = tmp_path_factory.mktemp("page")
    runs = base / "runs"
    runs.mkdir()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(application(runs, port), log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 20
        while not server.started:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield Site(runs, port)
        server.should_exit = True
        thread.join(10)


def write_run(runs: Path, name: str, **values: Any) -> Path:
    """A run with a record and one artifact; returns the artifact's directory."""
    artifact = runs / name / "pretrain-0123456789ab"
    artifact.mkdir(parents=True, exist_ok=True)
    (runs / name / "_runs").mkdir(exist_ok=True)
    nodes = {
        "dataset": {"stage": "dataset", "state": "finished", "after": [], "artifact": str(runs / name / "d"), "why": ""},
        "pretrain": {
            "stage": "pretrain", "state": "running", "after": ["dataset"], "artifact": str(artifact), "why": "new", "started": 1.0,
            "done": 210, "total": 840, "unit": "steps", "figures": {"loss": 2.987654, "note": EVIL}, "seconds_left": 63.0,
        },
    }  # fmt: skip
    record = {
        "id": "1", "run": name, "state": "failed", "pid": 1, "host": "here", "started": time.time() - 60, "ended": time.time(),
        "error": None, "parameters": {}, "config": {}, "prefect": None, "nodes": nodes, **values,
    }  # fmt: skip
    (runs / name / "_runs" / "1.json").write_text(json.dumps(record))
    return artifact


def crown(runs: Path, **values: Any) -> None:
    """A night that has found a champion."""
    champion = Champion(**{"key": "k", "checkpoint": "/c", "run": "going", "step": 8000, "since": 1.7e9, **values})
    Journal(runs).append({"kind": "night", "seen": [], "failed": {}, "champion": champion.as_json()})


def test_a_run_that_goes_on_shows_its_progress(site: Site) -> None:
    write_run(site.runs, "going", state="running", ended=None)
    with lock.locked(str(site.runs / "going")):
        status, _, index = site.get("/")
        _, _, run = site.get("/runs/going")
    assert status == 200
    for page in (index, run):
        assert '<progress value="210" max="840">' in page
        assert "210 / 840 steps" in page
        assert "loss 2.988" in page
        assert "1 min 03 s left" in page
    assert 'data-seconds="3"' in index
    assert '<svg class="graph"' in run
    assert '<a href="#node-pretrain">' in run
    assert '<tr id="node-pretrain">' in run
    _, _, afterwards = site.get("/runs/going")  # nobody holds its lease any more
    assert '<span class="state crashed">crashed</span>' in afterwards


def test_what_runs_say_is_text(site: Site) -> None:
    nodes = {
        EVIL: {
            "stage": EVIL,
            "state": EVIL,
            "after": [EVIL],
            "artifact": EVIL,
            "why": EVIL,
            "error": EVIL,
            "unit": EVIL,
            "done": 1,
        },
        "b": {
            "stage": "b",
            "state": "failed",
            "after": [EVIL],
            "artifact": EVIL,
            "why": "",
            "error": EVIL,
            "metrics": {EVIL: 0.5},
        },
    }
    write_run(site.runs, "a&b<i>", nodes=nodes, error=EVIL, host=EVIL)
    crown(site.runs, run=EVIL, why=EVIL, checkpoint=EVIL, scores={EVIL: 51.5})
    for path in ("/", "/runs/a&b%3Ci%3E"):
        status, headers, page = site.get(path)
        assert status == 200
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert" in page
        assert "<i>" not in page
        nonce = headers["content-security-policy"].split("script-src 'nonce-")[1].split("'")[0]
        assert page.count(f'<script nonce="{nonce}">') == page.count("<script") == 1
        assert site.get(path)[1]["content-security-policy"] != headers["content-security-policy"]
    Journal(site.runs).path.unlink()


def test_the_page_loads_nothing_from_elsewhere(site: Site) -> None:
    write_run(site.runs, "alone")
    for path in ("/", "/runs/alone"):
        _, headers, page = site.get(path)
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in page
        assert "style=" not in page  # the policy would drop it


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}", ""]
)
def test_another_name_for_this_machine_is_refused(site: Site, host: str) -> None:
    write_run(site.runs, "secret")
    status, _, page = site.get("/", Host=host.format(port=site.port))
    assert status in (400, 403)
    assert "secret" not in page


def test_its_own_names_are_served_and_nothing_is_changed(site: Site) -> None:
    for name in ("127.0.0.1", "localhost"):
        assert site.get("/health", Host=f"{name}:{site.port}")[0] == 200
    assert site.get("/", "POST")[0] == 405
    assert site.get("/", "POST", Origin="http://evil.example")[0] == 403
    assert site.get("/", "DELETE")[0] == 405


def test_known_files_of_artifacts_are_handed_out_without_a_right_to_run_anything(site: Site) -> None:
    artifact = write_run(site.runs, "files")
    (artifact / "_logs").mkdir(exist_ok=True)
    for name in ("report.html", "metrics.jsonl", "predictions.tsv", "manifest.json", "_logs/rank0.log"):
        (artifact / name).write_text(f"{EVIL} {name}")
    link = site.runs / "files" / "pretrain"
    link.unlink(missing_ok=True)
    link.symlink_to(artifact.name)
    for place in ("pretrain/report.html", f"{artifact.name}/report.html"):
        status, headers, body = site.get(f"/files/files/{place}")
        assert (status, body, headers["content-type"]) == (200, f"{EVIL} report.html", "text/html; charset=utf-8")
        assert headers["content-security-policy"].startswith("sandbox;")  # without allow-scripts
        assert "allow-scripts" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    for name in ("metrics.jsonl", "predictions.tsv", "_logs/rank0.log"):
        assert site.get(f"/files/files/pretrain/{name}")[1]["content-type"] == "text/plain; charset=utf-8"
    _, _, page = site.get("/runs/files")
    assert f'<a href="/files/files/{artifact.name}/report.html">report.html</a>' in page
    assert f'<a href="/files/files/{artifact.name}/_logs/rank0.log">rank0.log</a>' in page


def test_nothing_else_is_handed_out(site: Site, tmp_path: Path) -> None:
    artifact = write_run(site.runs, "closed")
    outside = tmp_path / "passwd.txt"
    outside.write_text("root")
    (site.runs.parent / "beside.txt").write_text("root")
    (artifact / "sub").mkdir(exist_ok=True)
    (artifact / "model.safetensors").write_text("weights")
    (artifact / "_building.json").write_text("{}")
    (artifact / ".env.txt").write_text("TOKEN=1")
    (artifact / "_logs").mkdir(exist_ok=True)
    (artifact / "_logs" / "job.json").write_text("{}")
    state.write(site.runs, {})
    (state.directory(site.runs) / "prefect.log").write_text("log")
    (site.runs / "top.txt").write_text("top")
    leads = {"out.txt": outside, "hidden.txt": artifact / ".env.txt", "state.json": state.directory(site.runs) / "state.json"}
    for name, target in leads.items():
        (artifact / name).unlink(missing_ok=True)
        (artifact / name).symlink_to(target)
    place = f"closed/{artifact.name}"
    refused = [
        *(f"{place}/{name}" for name in ("model.safetensors", "_building.json", ".env.txt", "_logs/job.json", "sub", "", *leads)),
        "closed/_runs/1.json", ".servers/state.json", ".servers/prefect.log", "top.txt", "beside.txt",
        "../beside.txt", "%2e%2e/beside.txt", f"{place}/../../../beside.txt", f"{place}/..%2f..%2f..%2fbeside.txt",
        f"/{outside}", str(outside), f"{place}/report.html%00.txt", "closed/nothing.txt", "",
    ]  # fmt: skip
    for name in refused:
        status, _, body = site.get(f"/files/{name}")
        assert (status, "root" in body, "TOKEN" in body) == (404, False, False), name
    assert site.get("/runs/..%2f..")[0] == site.get("/runs/..")[0] == site.get("/runs/nobody")[0] == 404


def test_the_nights_champion_and_its_trend_are_shown(site: Site) -> None:
    assert "Champion" not in site.get("/")[2]
    crown(site.runs, scores={"sst2": 91.25}, why="better on sst2")
    (site.runs / ".night" / "trend.html").write_text("the trend")
    _, _, page = site.get("/")
    assert '<a href="/runs/going">going step 8,000</a>' in page
    assert "sst2 91.250" in page
    assert "better on sst2" in page
    assert '<a href="/files/.night/trend.html">trend: night</a>' in page
    assert site.get("/files/.night/trend.html")[2] == "the trend"
    assert site.get("/files/.night/nights.jsonl")[0] == 200
    Journal(site.runs).path.unlink()


def test_a_node_leads_to_its_run_in_mlflow_and_the_run_to_prefect(site: Site) -> None:
    artifact = write_run(site.runs, "linked", prefect="11-22")
    (site.runs / ".tracking").mkdir(exist_ok=True)
    (artifact / "manifest.json").write_text(json.dumps({"build": "ours"}))
    links.remember(site.runs / ".tracking", "ours", "7", "abc")
    with lock.locked(str(state.directory(site.runs))):
        state.write(
            site.runs, {"state": "up", "mlflow": "http://127.0.0.1:5001", "prefect": "http://127.0.0.1:4201", "services": {}}
        )
        _, _, page = site.get("/runs/linked")
    address = links.page(site.runs / ".tracking", "ours", "http://127.0.0.1:5001")
    assert address is not None
    assert "runs/abc" in address
    assert f'<a href="{address}">MLflow</a>' in page
    assert '<a href="http://127.0.0.1:4201/runs/flow-run/11-22">' in page


def test_servers_and_their_health_are_shown(site: Site) -> None:
    services = {
        "mlflow": {"title": "MLflow", "state": "up", "address": "http://127.0.0.1:5001", "since": time.time() - 75, "restarts": 2, "last": "was killed"},
        "worker": {"title": "Prefect's worker", "state": "given up", "address": None, "since": 0.0, "restarts": 5, "last": "ended"},
    }  # fmt: skip
    swept = {"at": time.time() - 5, "mended": ["run a: its process is gone"], "error": None}
    state.write(site.runs, {"state": "up", "mlflow": "http://127.0.0.1:5001", "services": services, "swept": swept})
    assert "MLflow" not in site.get("/")[2]  # nobody holds the lease: they do not run
    with lock.locked(str(state.directory(site.runs))):
        _, _, page = site.get("/")
    assert '<a href="http://127.0.0.1:5001">MLflow</a>' in page
    assert "1 min 15 s" in page
    assert "last time it was killed" in page
    assert "given up" in page
    assert "run a: its process is gone" in page
