"""`cloze ui` on real servers: what it prints, who may attach, and that nobody takes another with
him.
"""

from __future__ import annotations

import http.client
import json
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from cloze.flows.run import server_addresses, status_file
from cloze.flows.run.server_addresses import answers
from cloze.flows.ui import processes, state
from cloze.flows.ui.services import is_free
from tests.conftest import REPOSITORY
from tests.flows.test_cli import cloze
from tests.flows.ui.waiting import is_gone, number, until
from tests.operations.api import KEYS, trigger
from tests.operations.ui import addresses, end, running_ui, start_ui


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


def spent() -> float:
    """Seconds that child processes have computed: the clock of a machine with other
    work says less.
    """
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_a_taken_port_is_one_sentence_within_a_second(tmp_path: Path) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        for option in ("--prefect-port", "--mlflow-port", "--dashboard-port"):
            before = spent()
            done = cloze("ui", option, port, cwd=tmp_path, CLOZE_RUNS_DIR=str(tmp_path / "runs"))
            assert done.returncode == 2
            assert done.stderr == (
                f"cloze: {option} {port} is taken by another program; name another port, or "
                f"leave the option out\n"
            )
            assert spent() - before < 1.0
    assert not state.is_running(tmp_path / "runs")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_servers_come_up_and_are_told_and_end(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    mark = {**os.environ, processes.MARK: str(state.directory(tmp_path / "runs"))}
    toy = [sys.executable, "-m", "tests.flows.ui.toy", str(tmp_path / "left"), "serve"]
    left = subprocess.Popen(
        toy, cwd=REPOSITORY, env=mark
    )  # of an earlier `cloze ui` that was killed with all its servers
    number(tmp_path / "left" / "server")
    with running_ui(tmp_path, HOME=str(home)) as ui:
        for name, path in (("page", "/health"), ("prefect", "/api/health"), ("mlflow", "/health")):
            assert urlsplit(ui[name]).hostname == "127.0.0.1"
            assert status(ui[name] + path) == 200
            evil = f"evil.example:{urlsplit(ui[name]).port}"
            login = f"Basic {KEYS[ui['api']]}"  # which a browser would send along
            assert status(ui[name] + "/", Host=evil, Authorization=login) == 403
        assert len(ui["deployments"]) == 7
        assert left.wait(0) == 0
        assert (tmp_path / "left" / "saved").exists()
        assert not (
            home / ".prefect"
        ).exists()  # the user's own settings and database are not touched
        assert (tmp_path / "runs" / ".servers" / "prefect" / "prefect.db").exists()

        here = {"cwd": tmp_path, "CLOZE_RUNS_DIR": str(tmp_path / "runs")}
        second = cloze("ui", "--json", **here)  # attaches
        assert second.returncode == 0
        assert {
            key: json.loads(second.stdout)[key]
            for key in ("page", "prefect", "mlflow", "pid", "deployments")
        } == {key: ui[key] for key in ("page", "prefect", "mlflow", "pid", "deployments")}
        other = cloze("ui", "--mlflow-port", 1 + urlsplit(ui["mlflow"]).port, **here)
        assert other.returncode == 2
        assert "these servers run already" in other.stderr

        os.kill(service(tmp_path, "mlflow")["pid"], signal.SIGKILL)
        until(lambda: is_up(tmp_path, "mlflow", 1), 120)
        assert status(ui["mlflow"] + "/health") == 200
    assert not (tmp_path / "runs" / ".servers" / "state.json").exists()
    assert all(is_free(int(urlsplit(ui[name]).port or 0)) for name in ("page", "prefect", "mlflow"))


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
