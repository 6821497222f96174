"""Ways to stop a run: it saves and says so, or it goes on from its last checkpoint. Each row of the
table in docs/how-to/incidents.md that Prefect and its worker have a part in.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from cloze.core.artifacts import artifact
from cloze.flows.run import status_file
from tests.operations.conftest import Toys
from tests.operations.servers import Operations, cloze, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TWO = {"processes": 2, "grace_seconds": 5}


def training(operations: Operations, toys: Toys) -> str:
    """A flow run whose training has begun and does not end by itself."""
    toys.hold.touch()
    config = toys.write(train={"hold": str(toys.hold)}, run=TWO)
    flow_run = operations.trigger("full-run/toys", config=config)
    until(lambda: operations.training(toys.run))
    return flow_run


def suspend(operations: Operations, flow_run: str, seconds: float = 900) -> None:
    """What the UI's Suspend does."""
    expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))
    details = {"pause_timeout": expires, "pause_reschedule": True}
    state = {"type": "PAUSED", "name": "Suspended", "state_details": details}
    answer = operations.call(f"/flow_runs/{flow_run}/set_state", {"state": state})
    assert answer["status"] == "ACCEPT", answer


def saved(operations: Operations, toys: Toys) -> int:
    (checkpoint,) = (operations.runs / toys.run).glob("train-*/_checkpoint")
    return int(checkpoint.read_text())


def resumed(operations: Operations, toys: Toys) -> int:
    manifest = artifact.read_manifest(str(operations.runs / toys.run / "train"))
    return int(manifest.summary["resumed"])


def test_suspend_saves_and_resume_goes_on(operations: Operations, toys: Toys) -> None:
    flow_run = training(operations, toys)
    suspend(operations, flow_run)
    until(lambda: not operations.processes(), 90)
    state = operations.state(flow_run)
    assert (state["type"], state["name"]) == ("PAUSED", "Suspended")
    assert "training was stopped after step" in state["message"]
    record: dict[str, Any] = status_file.read(operations.runs, toys.run)
    assert (record["state"], record["nodes"]["train"]["state"]) == ("cancelled", "stopped")
    assert "Resume continues" in record["error"]
    step = saved(operations, toys)
    assert step > 0

    toys.hold.unlink()
    operations.call(f"/flow_runs/{flow_run}/resume", {})
    state = operations.end(flow_run)
    assert state["type"] == "COMPLETED", state["message"]
    assert resumed(operations, toys) == step


@pytest.mark.soak
def test_a_suspended_run_is_not_taken_for_a_silent_one(operations: Operations, toys: Toys) -> None:
    assert cloze(operations, "deploy").returncode == 0  # with the automation for silent runs
    flow_run = training(operations, toys)
    suspend(operations, flow_run)
    until(lambda: not operations.processes(), 90)
    deadline = time.monotonic() + 110
    while time.monotonic() < deadline:
        assert operations.state(flow_run)["name"] == "Suspended"
        time.sleep(5)


@pytest.fixture
def worker(operations: Operations) -> Iterator[subprocess.Popen[bytes]]:
    """Cloze's worker instead of the others'; they take their turn again afterwards."""
    others = [process for process in psutil.process_iter() if operations.is_worker(process)]
    for process in others:
        process.suspend()
    arguments = ["--pool", "cloze", "--type", "process", "--name", "ours"]
    process = subprocess.Popen(
        [sys.executable, "-m", "cloze.flows.prefect.worker", *arguments],
        env=operations.environment,
        cwd=operations.home,
    )
    yield process
    process.kill()
    process.wait()
    for other in others:
        other.resume()


def test_a_worker_that_is_asked_to_end_lets_its_trainings_save(
    operations: Operations, toys: Toys, worker: subprocess.Popen[bytes]
) -> None:
    flow_run = training(operations, toys)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(90) == 0
    assert not operations.processes()
    state = operations.state(flow_run)
    assert state["type"] == "CRASHED"
    assert "training was stopped after step" in state["message"]
    assert status_file.read(operations.runs, toys.run)["state"] == "crashed"
    assert saved(operations, toys) > 0


def test_a_worker_without_runs_ends_at_once(
    operations: Operations, worker: subprocess.Popen[bytes]
) -> None:
    until(lambda: psutil.Process(worker.pid).children())
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
