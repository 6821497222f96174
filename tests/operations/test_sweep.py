"""Runs whose processes are gone are found and marked, and what they held is free; nothing of them
stays.

With a real server, a real worker and a deployment that allows one run at a time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from cloze.flows.prefect.deploy import _of_pool, deployments
from cloze.flows.prefect.sweep import PENDING_MINUTES, Record, active_flow_runs, death
from cloze.flows.run import server_addresses
from tests.checkout import import_path
from tests.conftest import REPOSITORY
from tests.flows.ui.waiting import is_gone, number, until
from tests.operations.api import request, state, trigger
from tests.operations.servers import Operations
from tests.operations.ui import running_ui

DEPLOY = """
from prefect import flow
flow.from_source(source={root!r}, entrypoint="tests/operations/sleeper.py:sleeper").deploy(
    "one", work_pool_name="cloze", concurrency_limit=1, build=False, push=False, print_next_steps=False)
"""


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_killed_flow_and_worker_are_found_and_the_next_run_starts(tmp_path: Path) -> None:
    with running_ui(tmp_path, PYTHONPATH=import_path(REPOSITORY)) as ui:
        api = ui["api"]
        environment = {
            **os.environ,
            "PREFECT_API_URL": api,
            "PREFECT_API_AUTH_STRING": Path(ui["login"]).read_text(),
            "PREFECT_HOME": str(tmp_path / "client"),
        }
        subprocess.run(
            [sys.executable, "-c", DEPLOY.format(root=str(REPOSITORY))],
            env=environment,
            check=True,
            timeout=120,
        )
        first = trigger(api, "sleeper/one", place=str(tmp_path / "first"))
        second = trigger(api, "sleeper/one", place=str(tmp_path / "second"), seconds=1)
        process = number(tmp_path / "first")
        until(lambda: request(api, f"/flow_runs/{first}")["infrastructure_pid"])
        worker = server_addresses.servers(tmp_path / "runs")["services"]["worker"]
        for pid in (worker["pid"], process):  # nobody is left who could tell Prefect
            os.kill(pid, signal.SIGKILL)
        assert state(api, first) == "RUNNING"
        until(lambda: state(api, first) == "CRASHED", 120)
        message = request(api, f"/flow_runs/{first}")["state"]["message"]
        assert (
            message
            == f"its process {request(api, f'/flow_runs/{first}')['infrastructure_pid']} is gone"
        )
        until(lambda: state(api, second) == "COMPLETED", 180)  # the slot is free again
        log = tmp_path / "ui.err"  # printed when the sweep is over
        until(lambda: "is gone; marked Crashed" in log.read_text())
        assert log.read_text().count("is gone; marked Crashed") == 1

        third = trigger(api, "sleeper/one", place=str(tmp_path / "third"))
        process = number(tmp_path / "third")
        os.kill(
            server_addresses.servers(tmp_path / "runs")["services"]["worker"]["pid"], signal.SIGKILL
        )  # the worker alone
        until(lambda: is_gone(process), 60)  # no orphan
        until(lambda: state(api, third) == "CRASHED", 120)

        fourth = trigger(api, "sleeper/one", place=str(tmp_path / "fourth"))
        process = number(tmp_path / "fourth")
    assert is_gone(process)  # Ctrl-C cancels it
    assert fourth


OLD = timedelta(minutes=2)


def judge(
    kind: str,
    pid: str | None,
    *,
    owner: Record | None = None,
    here: bool = True,
    age: timedelta = OLD,
) -> str | None:
    """What is said of a flow run in a state of that kind and age."""
    from prefect.client.schemas.objects import FlowRun, State, StateType

    now = datetime.now(timezone.utc)
    found: State[Any] = State(type=StateType(kind), timestamp=now - age)
    return death(
        FlowRun(
            id=uuid.uuid4(), flow_id=uuid.uuid4(), name="x", state=found, infrastructure_pid=pid
        ),
        owner,
        here,
        now,
    )


def test_only_what_is_surely_dead_is_judged_so() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    host = os.uname().nodename
    assert judge("RUNNING", str(gone.pid)) == f"its process {gone.pid} is gone"
    assert judge("RUNNING", f"{host}:{gone.pid}") == f"its process {gone.pid} is gone"
    assert (
        judge("RUNNING", str(os.getpid())) == f"its process {os.getpid()} is gone"
    )  # the number belongs to another by now
    assert (
        judge("RUNNING", str(gone.pid), age=timedelta(seconds=1)) is None
    )  # its state may be ahead of its process
    assert judge("RUNNING", str(gone.pid), here=False) is None  # on another machine, perhaps
    elsewhere = {"host": "elsewhere", "pid": gone.pid, "state": "failed"}
    assert judge("RUNNING", str(gone.pid), owner=elsewhere) is None
    assert judge("RUNNING", None) is None
    terminal = {"host": host, "pid": gone.pid, "state": "crashed"}
    assert judge("RUNNING", None, owner=terminal) == f"its process {gone.pid} is gone"
    assert (
        judge("RUNNING", None, owner={"host": host, "pid": gone.pid, "state": "running"}) is None
    )  # it holds its lease
    assert (
        judge("RUNNING", None, owner={"host": host, "pid": os.getpid(), "state": "crashed"}) is None
    )  # it is about to end
    assert judge("PENDING", None) is None
    assert "started no process" in (
        judge("PENDING", None, age=timedelta(minutes=PENDING_MINUTES + 1)) or ""
    )


def test_a_living_flow_is_known_by_its_environment() -> None:
    from cloze.flows.prefect import sweep

    name = str(uuid.uuid4())
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"],
        env={**os.environ, "PREFECT__FLOW_RUN_ID": name},
    ) as process:
        try:
            until(lambda: sweep._serves(process.pid, name))
            assert not sweep._serves(process.pid, str(uuid.uuid4()))
        finally:
            process.kill()
    assert not sweep._serves(process.pid, name)


class Pages:
    """A client of a server that has seven of everything and tells two at a time."""

    def __init__(self) -> None:
        self.flows = [SimpleNamespace(id=number_, name=f"f{number_}") for number_ in range(7)]

    def _page(self, offset: int, **filters: Any) -> list[Any]:
        del filters
        return [
            SimpleNamespace(**vars(flow), flow_id=flow.id, work_pool_name="cloze")
            for flow in self.flows[offset : offset + 2]
        ]

    read_flows = read_flow_runs = read_deployments = _page


def test_all_pages_of_a_server_are_read() -> None:
    client: Any = Pages()
    assert [run.id for run in active_flow_runs(client)] == list(range(7))
    assert [found.id for found in deployments(client)] == list(range(7))
    assert [name for name, _ in _of_pool(client, "cloze")] == [f"f{n}/f{n}" for n in range(7)]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_server_with_more_than_a_page_of_runs_and_deployments_is_read_to_its_end(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Slow because a real Prefect server starts, and gets 201 of each: its pages have 200."""
    server = Operations(tmp_path_factory.mktemp("busy"))
    try:
        flow = server.call("/flows/", {"name": "busy"})["id"]
        for number_ in range(201):
            server.call(
                "/flow_runs/", {"flow_id": flow, "state": {"type": "RUNNING", "name": "Running"}}
            )
            server.call("/deployments/", {"flow_id": flow, "name": f"d{number_}"})
        with (
            temporary_settings({PREFECT_API_URL: server.api}),
            get_client(sync_client=True) as client,
        ):
            assert len({run.id for run in active_flow_runs(client)}) == 201
            assert len({found.id for found in deployments(client)}) == 201
    finally:
        server.close()
