"""The dashboard, from a real server: what it shows, and what it refuses."""

from __future__ import annotations

import http.client
import json
import re
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from cloze.core.artifacts import lock
from cloze.flows.machine import slots
from cloze.flows.nightly.journal import Champion, Journal
from cloze.flows.run import server_addresses
from cloze.flows.ui.dashboard import application, reachable
from tests.flows.test_shared_places import OTHER, as_account, as_root

EVIL = '<script>alert("x")</script>'


class Site:
    """The page of `runs` on a port of this machine."""

    def __init__(self, runs: Path, port: int) -> None:
        self.runs, self.port = runs, port

    def get(
        self, path: str, method: str = "GET", **headers: str
    ) -> tuple[int, dict[str, str], str]:
        """Status, headers and body; the path is sent as it stands."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return (
                answer.status,
                {key.lower(): value for key, value in answer.getheaders()},
                answer.read().decode(),
            )
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
        server = uvicorn.Server(
            uvicorn.Config(application(runs, port), log_level="error", lifespan="off")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 20
        while not server.started:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield Site(runs, port)
        server.should_exit = True
        thread.join(10)


def write_run(runs: Path, name: str, **values: Any) -> None:
    """Write the record of a run."""
    artifact = runs / name / "pretrain-0123456789ab"
    (runs / name / "_status").mkdir(parents=True, exist_ok=True)
    nodes = {
        "dataset": {"stage": "dataset", "state": "finished", "after": [],
        "artifact": str(runs / name / "d"), "why": ""},
        "pretrain": {
            "stage": "pretrain", "state": "running", "after": ["dataset"],
            "artifact": str(artifact), "why": "new", "started": 1.0,
            "done": 210, "total": 840, "unit": "steps", "figures": {"loss": 2.987654, "note": EVIL},
            "seconds_left": 63.0,
        },
    }  # fmt: skip
    record = {
        "id": "1", "run": name, "state": "failed", "pid": 1, "host": socket.gethostname(),
        "started": time.time() - 60, "ended": time.time(),
        "error": None, "parameters": {}, "config": {}, "prefect": None, "nodes": nodes, **values,
    }  # fmt: skip
    record["nodes"] = {key: {"artifact": "a", **node} for key, node in record["nodes"].items()}
    (runs / name / "_status" / "1.json").write_text(json.dumps(record))


def crown(runs: Path, **values: Any) -> None:
    """A night that has found a champion."""
    champion = Champion(
        **{"key": "k", "checkpoint": "/c", "run": "going", "step": 8000, "since": 1.7e9, **values}
    )
    Journal(runs).append({"kind": "night", "seen": [], "failed": {}, "champion": asdict(champion)})


def test_a_run_with_its_nodes_that_run_or_wait_for_a_slot(site: Site) -> None:
    why = "waits for a slot: CPU 0 is held by first (process 7)"
    nodes = {
        "corpus": {"stage": "corpus", "state": "cached"},
        "vocab": {"stage": "vocab", "state": "finished"},
        "pretrain@1": {"stage": "pretrain", "state": "running"},
        "pretrain@2": {"stage": "pretrain", "state": "queued", "why": why},
        "pretrain@3": {"stage": "pretrain", "state": "queued", "why": why},
        "probe": {"stage": "probe", "state": "retrying", "why": "retry 1 of 2 in 10 s"},
    }
    write_run(site.runs, "going", state="running", ended=None, nodes=nodes)
    with lock.locked(str(site.runs / "going")):
        status, _, page = site.get("/")
    assert status == 200
    assert '<span class="state running">running</span>' in page
    assert ">2/6<" in page
    assert f"pretrain@1, pretrain@2 and 1 more: {why}, probe: retry 1 of 2 in 10 s" in page
    assert 'data-seconds="3"' in page
    _, _, afterwards = site.get("/")  # nobody holds its lease any more
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
    status, headers, page = site.get("/")
    assert status == 200
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert "a&amp;b&lt;i&gt;" in page
    assert "<i>" not in page
    nonce = headers["content-security-policy"].split("script-src 'nonce-")[1].split("'")[0]
    assert page.count(f'<script nonce="{nonce}">') == page.count("<script") == 1
    assert site.get("/")[1]["content-security-policy"] != headers["content-security-policy"]
    Journal(site.runs).path.unlink()


def test_the_page_loads_nothing_from_elsewhere(site: Site) -> None:
    write_run(site.runs, "alone")
    _, headers, page = site.get("/")
    assert "default-src 'none'" in headers["content-security-policy"]
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == (
        "nosniff",
        "no-referrer",
    )
    assert "http://" not in page
    assert "https://" not in page
    assert "style=" not in page  # the policy would drop it


def test_no_file_is_served(site: Site) -> None:
    write_run(site.runs, "closed")
    for path in (
        "/files/closed/_status/1.json",
        "/closed/_status/1.json",
        "/../runs/closed/_status/1.json",
        "/runs/closed",
    ):
        assert site.get(path)[0] == 404


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost.evil.example:{port}",
        "",
    ],
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


def test_the_champion_is_shown(site: Site) -> None:
    assert "Champion" not in site.get("/")[2]
    crown(site.runs, scores={"sst2": 91.25}, why="better on sst2")
    _, _, page = site.get("/")
    assert "going step 8,000" in page
    assert "sst2 91.2" in page  # hundredths, as on the trend page
    assert "better on sst2" in page
    Journal(site.runs).path.unlink()


def test_holders_of_slots_are_shown(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    held = [
        slots.Holder(slot=slot, pid=1, run="<b>first</b>", node="pretrain", since=1.0)
        for slot in ("gpu0", "core1", "core2")
    ]
    monkeypatch.setattr(slots, "holders", lambda: held)
    _, _, page = site.get("/")
    assert "<td>&lt;b&gt;first&lt;/b&gt;</td><td>pretrain</td><td>gpu0 2 cores</td>" in page
    monkeypatch.setattr(slots, "holders", list)
    assert "All slots are free." in site.get("/")[2]


def test_servers_and_the_links_to_them_are_shown(site: Site) -> None:
    write_run(site.runs, "linked", prefect="11-22")
    services = {
        "mlflow": {"title": "MLflow", "state": "up", "address": "http://127.0.0.1:5001",
        "since": time.time() - 75, "restarts": 2, "last": "was killed"},
        "worker": {"title": "Prefect's worker", "state": "waiting", "address": None, "since": 0.0,
        "restarts": 5, "last": "ended"},
    }  # fmt: skip
    addresses = {"mlflow": "http://127.0.0.1:5001", "prefect": "http://127.0.0.1:4201"}
    with lock.locked(str(server_addresses.directory(site.runs))):
        server_addresses.write(site.runs, {"state": "up", **addresses, "services": services})
        _, _, page = site.get("/")
    runs_of_mlflow = "http://127.0.0.1:5001/#/experiments?workflowType=machine_learning"
    assert page.count(f'<a href="{runs_of_mlflow}">MLflow</a>') == 2
    assert '<a href="http://127.0.0.1:4201/runs/flow-run/11-22">linked</a>' in page
    assert "1 min 15 s" in page
    assert "last time it was killed" in page
    assert '<span class="state waiting">waiting</span>' in page
    assert "MLflow" not in site.get("/")[2]  # nobody holds the lease: they do not run


def test_owners_are_shown_where_there_are_several(site: Site) -> None:
    write_run(site.runs, "alice/one", owner="alice")
    write_run(site.runs, "bob/one", owner="bob")
    _, _, page = site.get("/")
    assert "<th>owner</th>" in page
    assert "<td>alice</td>" in page
    assert "<td>bob</td>" in page


@as_root
def test_pages_that_another_accounts_login_opens_are_no_links() -> None:
    """Its browser would land on a login that only the other account can read."""
    services = {"prefect": {"title": "Prefect", "address": "http://127.0.0.1:4201"}}
    addresses = {"prefect": "http://127.0.0.1:4201", "mlflow": "http://127.0.0.1:5001"}
    with tempfile.NamedTemporaryFile() as login:  # mode 0600
        servers = {**addresses, "services": services, "login": login.name}

        def look() -> int:
            found = reachable(servers)
            assert (found["prefect"], found["mlflow"], found["owner"]) == (None, None, "root")
            assert found["services"]["prefect"] == {"title": "Prefect", "address": None}
            return 0

        assert reachable(servers) == servers
        assert as_account(OTHER, 0o022, look) == 0


def test_each_link_to_a_server_with_a_login_logs_the_browser_in(site: Site) -> None:
    """A browser that typed the password for the dashboard has none for Prefect's pages."""
    row = {"state": "up", "since": time.time(), "restarts": 0, "last": ""}
    services = {"prefect": {**row, "title": "Prefect", "address": "http://127.0.0.1:4201"}}
    addresses = {"mlflow": None, "prefect": "http://127.0.0.1:4201", "login": "runs/.servers/login"}
    with lock.locked(str(server_addresses.directory(site.runs))):
        server_addresses.write(site.runs, {"state": "up", **addresses, "services": services})
        _, _, page = site.get("/")
    links = re.findall(r'<a href="([^"]*)">Prefect</a>', page)
    assert links == ["http://127.0.0.1:4201/cloze-login?next=/"] * 2
