"""`cloze ui` on real servers: what it prints, who may attach, and that nobody takes another with
him.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from cloze.flows.run import server_addresses, status_file
from cloze.flows.run.server_addresses import answers
from cloze.flows.ui import processes
from cloze.flows.ui.services import is_free
from tests.conftest import REPOSITORY
from tests.flows.test_cli import cloze
from tests.flows.ui.waiting import is_gone, number, until
from tests.operations.api import KEYS, request, trigger
from tests.operations.ui import addresses, end, running_ui, start_ui

pytestmark = pytest.mark.timeout(400)
NOBODY = 65534
AS_ANOTHER = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None or shutil.which("curl") is None,
    reason="asks as another account, which only root may do",
)


def as_nobody(url: str, body: Any = None, *options: str) -> int:
    """The status of one request that another account sends."""
    sent = (
        [] if body is None else ["-H", "Content-Type: application/json", "--data", json.dumps(body)]
    )
    done = subprocess.run(
        ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "curl", "-s",
         "-o", "/dev/null", "-w", "%{http_code}", *options, *sent, url],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(done.stdout)


def service(place: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = server_addresses.servers(place / "runs")["services"][name]
    return found


def is_up(place: Path, name: str, restarts: int) -> bool:
    now = service(place, name)
    return bool(now["state"] == "up" and now["restarts"] >= restarts)


def status(url: str, **headers: str) -> int:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), int(parts.port or 80), timeout=10)
    try:
        connection.request("GET", parts.path or "/", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.soak
def test_a_taken_port_is_one_sentence_before_anything_is_started(tmp_path: Path) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        for option in ("--prefect-port", "--mlflow-port", "--dashboard-port"):
            done = cloze("ui", option, port, cwd=tmp_path, CLOZE_RUNS_DIR=str(tmp_path / "runs"))
            assert done.returncode == 2
            assert done.stderr == (
                f"cloze: {option} {port} is taken by another program; name another port, or "
                f"leave the option out\n"
            )
            assert not list((tmp_path / "runs").rglob("*.log"))
            assert not list((tmp_path / "runs").rglob("prefect*"))
    assert not server_addresses.is_running(tmp_path / "runs")


@dataclass(frozen=True)
class Ui:
    """A `cloze ui` for all tests of this file. Attributes: place: its working directory; ui: what
    it prints; left: of an earlier one that was killed with all its servers.
    """

    place: Path
    ui: dict[str, Any]
    left: subprocess.Popen[bytes]

    @property
    def key(self) -> str:
        """Its login, as a browser sends it."""
        return KEYS[self.ui["api"]]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    """It is up; afterwards it ends, and nothing of it is left."""
    place = tmp_path_factory.mktemp("ui")
    (place / "home").mkdir()
    mark = {**os.environ, processes.MARK: str(server_addresses.directory(place / "runs"))}
    toy = [sys.executable, "-m", "tests.flows.ui.toy", str(place / "left"), "serve"]
    left = subprocess.Popen(toy, cwd=REPOSITORY, env=mark)
    number(place / "left" / "server")
    with running_ui(place, HOME=str(place / "home")) as ui:
        yield Ui(place, ui, left)
    assert not (place / "runs" / ".servers" / "state.json").exists()
    assert all(is_free(int(urlsplit(ui[name]).port or 0)) for name in ("page", "prefect", "mlflow"))


def test_servers_come_up_and_are_told(up: Ui) -> None:
    ui = up.ui
    for name, path in (("page", "/health"), ("prefect", "/api/health"), ("mlflow", "/health")):
        assert urlsplit(ui[name]).hostname == "127.0.0.1"
        assert status(ui[name] + path) == 200
        evil = f"evil.example:{urlsplit(ui[name]).port}"
        login = f"Basic {up.key}"  # which a browser would send along
        assert status(ui[name] + "/", Host=evil, Authorization=login) == 403
    assert len(ui["deployments"]) == 8
    assert up.left.wait(0) == 0
    assert (up.place / "left" / "saved").exists()
    # the user's own settings and database are not touched
    assert not (up.place / "home" / ".prefect").exists()
    assert (up.place / "runs" / ".servers" / "prefect" / "prefect.db").exists()


def test_a_second_one_attaches(up: Ui) -> None:
    here = {"cwd": up.place, "CLOZE_RUNS_DIR": str(up.place / "runs")}
    second = cloze("ui", "--json", **here)
    assert second.returncode == 0
    same = ("page", "prefect", "mlflow", "pid", "deployments")
    assert {key: second.json[key] for key in same} == {key: up.ui[key] for key in same}
    other = cloze("ui", "--mlflow-port", 1 + urlsplit(up.ui["mlflow"]).port, **here)
    assert other.returncode == 2
    assert "these servers run already" in other.stderr


@AS_ANOTHER
def test_another_account_may_neither_start_nor_read(up: Ui) -> None:
    ui = up.ui
    created = as_nobody(
        f"{ui['api']}/deployments/00000000-0000-0000-0000-000000000000/create_flow_run",
        {"job_variables": {"command": 'sh -c "id > /tmp/x"'}},
    )
    reading = {
        "flows": as_nobody(f"{ui['api']}/flow_runs/filter", {}),
        "experiments": as_nobody(
            f"{ui['mlflow']}/api/2.0/mlflow/experiments/search", {"max_results": 9}
        ),
        "artifacts": as_nobody(f"{ui['mlflow']}/api/2.0/mlflow-artifacts/artifacts"),
        "graphql": as_nobody(f"{ui['mlflow']}/graphql", {"query": "{__typename}"}),
        "page": as_nobody(f"{ui['page']}/"),
        "metrics": as_nobody(f"{ui['page']}/metrics"),
    }
    guessed = as_nobody(f"{ui['page']}/", None, "-u", "cloze:guess")
    assert {created, guessed, *reading.values()} == {401}, (created, guessed, reading)


def test_the_owner_reads_and_nobody_else_finds_the_login(up: Ui) -> None:
    kept = Path(up.ui["login"])
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert b64encode(kept.read_bytes()).decode() == up.key
    assert request(up.ui["api"], "/flow_runs/count", {}) >= 0
    KEYS[up.ui["mlflow"]] = up.key
    experiments = "/api/2.0/mlflow/experiments/search"
    assert request(up.ui["mlflow"], experiments, {"max_results": 9})["experiments"]
    secret = kept.read_text().partition(":")[2]
    loose = [
        path
        for path in (up.place / "runs").rglob("*")
        if path.is_file()
        and stat.S_IMODE(path.stat().st_mode) & 0o044
        and secret.encode() in path.read_bytes()
    ]
    assert loose == []
    assert secret not in (up.place / "ui.err").read_text()


def test_a_server_that_asks_for_a_login(up: Ui, tmp_path: Path) -> None:
    api = {"PREFECT_API_URL": up.ui["api"], "PREFECT_HOME": str(tmp_path), "cwd": tmp_path}
    refused = cloze("deploy", **api)
    assert refused.returncode == 1
    assert f"Prefect at {up.ui['api']} rejects the login" in refused.stderr
    assert "PREFECT_API_AUTH_STRING" in refused.stderr
    found = cloze("doctor", "--json", **api).json["checks"]
    (prefect,) = (one for one in found if one["check"] == "PREFECT_API_URL")
    assert (prefect["ok"], "rejects the login" in prefect["found"]) == (False, True)
    login = Path(up.ui["login"]).read_text()
    deployed = cloze("deploy", "--json", PREFECT_API_AUTH_STRING=login, **api)
    assert deployed.returncode == 0, deployed.stderr
    assert len(deployed.json["deployments"]) == 8


@pytest.mark.soak
def test_a_killed_server_is_started_again(up: Ui) -> None:
    os.kill(service(up.place, "mlflow")["pid"], signal.SIGKILL)
    until(lambda: is_up(up.place, "mlflow", 1), 120)
    assert status(up.ui["mlflow"] + "/health") == 200


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_who_is_killed_comes_back_and_takes_nobody_along(tmp_path: Path) -> None:
    names = ("prefect", "mlflow", "worker")
    with running_ui(tmp_path) as ui:
        for name in ("mlflow", "worker", "prefect"):
            before = {other: service(tmp_path, other) for other in names}
            os.kill(before[name]["pid"], signal.SIGKILL)  # MLflow's own children held its port
            until(lambda name=name: is_up(tmp_path, name, 1), 200)
            after = {other: service(tmp_path, other) for other in names}
            for other in names:
                assert (after[other]["pid"] == before[other]["pid"]) == (other != name)
                assert after[other]["restarts"] == before[other]["restarts"] + (other == name)
        for name, path in (("page", "/health"), ("prefect", "/api/health"), ("mlflow", "/health")):
            assert status(ui[name] + path) == 200


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_killed_supervisor_leaves_nothing_and_the_next_one_comes_up(tmp_path: Path) -> None:
    first = start_ui(tmp_path)
    try:
        output = addresses(first, tmp_path)
        servers = [psutil.Process(service["pid"]) for service in output["services"].values()]
        family = {
            child.pid for server in servers for child in [server, *server.children(recursive=True)]
        }
        assert len(family) >= 4  # Prefect, the worker, MLflow and its child
        first.kill()
        first.wait()
        until(lambda: all(is_gone(pid) for pid in family), 60)
        assert not answers(output["prefect"] + "/api/health")
    finally:
        end(first, tmp_path)
    ports_before = [
        word
        for option, name in (("prefect", "prefect"), ("mlflow", "mlflow"), ("dashboard", "page"))
        for word in (f"--{option}-port", str(urlsplit(output[name]).port))
    ]
    second = start_ui(tmp_path, *ports_before)
    try:
        assert addresses(second, tmp_path)["prefect"] == output["prefect"]
    finally:
        second.send_signal(signal.SIGINT)
        assert second.wait(90) == 0
        end(second, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_ctrl_c_in_a_training_saves_a_checkpoint_and_leaves_no_process(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "sample"
    with running_ui(tmp_path) as ui:
        trigger(ui["api"], "full-run/full-run", config="sample", overrides={"pretrain.steps": 2000})

        def steps() -> int:
            found = status_file.newest(run)
            return int(found["nodes"]["pretrain"].get("done", 0)) if found else 0

        until(lambda: steps() > 0, 400)
        workers = [
            process for process in psutil.process_iter() if str(run) in " ".join(_words(process))
        ]
        assert workers  # the ranks
    assert not any(process.is_running() for process in workers)
    found = status_file.read(tmp_path / "runs", "sample")
    assert found["state"] == "cancelled"
    assert found["nodes"]["pretrain"]["state"] == "stopped"
    newest = max(
        run.glob("pretrain-*/checkpoints/*/checkpoint.json")
    )  # names sort as their steps do
    assert newest.parent.name in found["nodes"]["pretrain"]["error"]
    with sqlite3.connect(tmp_path / "runs" / ".servers" / "prefect" / "prefect.db") as database:
        rows = database.execute(
            "select state_type from flow_run where state_type != 'SCHEDULED'"
        ).fetchall()
    database.close()
    assert rows == [("CANCELLED",)]


def _words(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []
