"""A Prefect server and workers of the tests' own, and what one does with them: by the calls that
Prefect's UI makes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil

from cloze.core.processes import free_ports
from tests import warm
from tests.checkout import import_path
from tests.conftest import REPOSITORY
from tests.operations.api import answer

ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
PATIENCE = 900.0  # seconds: the machine may have other work
PLANTED = "correct-horse-battery"  # a secret that is not to be found anywhere
Found = TypeVar("Found")


def until(what: Callable[[], Found], seconds: float = PATIENCE) -> Found:
    """The first result of `what` that is true."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, (
            f"{what} did not come true in {seconds:.0f} s; it is {found!r}"
        )
        time.sleep(0.2)
    return found


class Operations:
    """A server below a directory, with the runs next to it."""

    def __init__(self, home: Path, **settings: str) -> None:
        """Args: settings: of the server, as environment variables."""
        (port,) = free_ports(1)
        self.home, self.api = home, f"http://127.0.0.1:{port}/api"
        self.runs = home / "runs"
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("PREFECT_", "MLFLOW_TRACKING"))
            },
            "PREFECT_API_URL": self.api,
            "PREFECT_HOME": str(home / "prefect"),
            "PREFECT_RUNNER_POLL_FREQUENCY": "2",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_WORKER_PREFETCH_SECONDS": "1",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_DATABASE_TIMEOUT": "60",  # as `cloze ui` has it
            "DO_NOT_TRACK": "1",
            "CLOZE_HOME": str(home),
            "CLOZE_RUNS_DIR": str(self.runs),
            "CLOZE_SLOTS_DIR": str(home / "slots"),
            "PYTHONPATH": import_path(REPOSITORY),  # not an installed Cloze
            "PLANTED_TOKEN": PLANTED,
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        self.server = self._start(
            warm.python(),
            "server",
            "server",
            "start",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            **settings,
        )
        until(self._answers)

    def _start(
        self, python: str, name: str, *arguments: str, **environment: str
    ) -> subprocess.Popen[bytes]:
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [python, "-m", "prefect", *arguments],
                env={**self.environment, **environment},
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._processes.append(process)
        return process

    def worker(self, **environment: str) -> subprocess.Popen[bytes]:
        """A worker of the pool, no fork: tests find its flows by their command lines."""
        return self._start(
            sys.executable, "worker", "worker", "start", "--pool", "cloze", "--type", "process",
            **environment,
        )  # fmt: skip

    def _answers(self) -> bool:
        try:
            return self.call("/health") is True
        except OSError:
            assert self.server.poll() is None, (self.home / "server.log").read_text()
            return False

    def delete(self, path: str) -> None:
        self.call(path, method="DELETE")

    def call(self, path: str, body: Any = None, method: str | None = None) -> Any:
        """GET, or POST of `body`, unless `method` says otherwise."""
        data = None if body is None else json.dumps(body).encode()
        call = urllib.request.Request(
            f"{self.api}{path}",
            data=data,
            headers={"Content-Type": "application/json"},
            method=method,
        )
        return answer(call)

    def trigger(self, name: str, *, at: str | None = None, **parameters: Any) -> str:
        """Run a deployment, as the form does; the flow run's id. Args: at: a moment to come."""
        deployment = self.call(f"/deployments/name/{name}")
        later = (
            {"state": {"type": "SCHEDULED", "state_details": {"scheduled_time": at}}} if at else {}
        )
        return str(
            self.call(
                f"/deployments/{deployment['id']}/create_flow_run",
                {"parameters": parameters, **later},
            )["id"]
        )

    def retry(self, flow_run: str) -> None:
        """What the UI's Retry does."""
        state = {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Retry from the UI"}
        answer = self.call(f"/flow_runs/{flow_run}/set_state", {"state": state, "force": True})
        assert answer["status"] == "ACCEPT", answer

    def cancel(self, flow_run: str) -> None:
        """What the UI's Cancel does."""
        answer = self.call(
            f"/flow_runs/{flow_run}/set_state",
            {"state": {"type": "CANCELLING", "name": "Cancelling"}, "force": True},
        )
        assert answer["status"] == "ACCEPT", answer

    def state(self, flow_run: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call(f"/flow_runs/{flow_run}")["state"]
        return found

    def end(self, flow_run: str) -> dict[str, Any]:
        """The state that a flow run ends in."""
        return until(lambda: (state := self.state(flow_run))["type"] in ENDED and state)

    def tasks(self, flow_run: str, count: int | None = None) -> dict[str, list[str]]:
        """The states of the task runs by name, in the order of their starts. Args: count: of the
        flow run's attempts, whose tasks are given.
        """
        found = self.call(
            "/task_runs/filter",
            {"flow_runs": {"id": {"any_": [flow_run]}}, "sort": "EXPECTED_START_TIME_ASC"},
        )
        states: dict[str, list[str]] = {}
        for task in found:
            if count is None or task["flow_run_run_count"] == count:
                states.setdefault(task["name"], []).append(task["state_name"])
        return states

    def logs(self, flow_run: str) -> list[tuple[int, str]]:
        found = self.call(
            "/logs/filter", {"logs": {"flow_run_id": {"any_": [flow_run]}}, "sort": "TIMESTAMP_ASC"}
        )
        return [(line["level"], line["message"]) for line in found]

    def artifacts(self, flow_run: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call(
            "/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [flow_run]}}}
        )
        return found

    def training(self, run: str) -> bool:
        """Whether a toy training of the run has begun to count."""
        return bool(list((self.runs / run).glob("train*/_checkpoint")))

    def processes(self) -> list[psutil.Process]:
        """The flows' and ranks' processes of this server's runs."""
        found = []
        for process in psutil.process_iter():
            try:
                mine = (
                    process.environ().get("CLOZE_RUNS_DIR") == str(self.runs)
                    and process.status() != psutil.STATUS_ZOMBIE
                )
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if mine and any(
                name in line
                for name in (
                    "prefect.engine",
                    "tests.operations.worker",
                    "cloze.model.worker",
                    "cloze.flows.launch.agent",
                )
            ):
                found.append(process)
        return found

    def is_worker(self, process: psutil.Process) -> bool:
        """Whether the process is one of `worker`'s."""
        return process.pid in {each.pid for each in self._processes if each is not self.server}

    def close(self) -> None:
        for process in reversed(self._processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(40)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        for left in self.processes():
            left.kill()


def prefect(operations: Operations, *arguments: str) -> str:
    """A command of Prefect's; what it printed."""
    done = subprocess.run(
        [warm.python(), "-m", "prefect", "--no-prompt", *arguments],
        env=operations.environment, cwd=operations.home, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def cloze(operations: Operations, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`cloze`, with the server known."""
    return subprocess.run(
        [warm.python(), "-c", warm.ENTRY, *arguments],
        env=operations.environment, cwd=operations.home, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
