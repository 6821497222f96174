"""Ways to stop a run: the rows of docs/how-to/incidents.md that Prefect has a part in."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from cloze.core.artifacts import artifact
from cloze.flows.prefect import sweep
from cloze.flows.run import status_file
from tests.operations.conftest import Toys
from tests.operations.servers import Operations, cloze, until
from tests.operations.stack import ENDED
from tests.operations.stopping import PROGRAM, Row, mlflow

pytestmark = pytest.mark.timeout(600)
TWO = {"processes": 2, "grace_seconds": 5}


def training(operations: Operations, toys: Toys, every: int = 10) -> str:
    """A flow run whose training has begun and does not end by itself."""
    toys.hold.touch()
    train = {"hold": str(toys.hold), "every": every, "saving": 0.5}
    flow_run = operations.trigger("full-run/toys", config=toys.write(train=train, run=TWO))
    until(lambda: operations.training(toys.run) or operations.state(flow_run)["type"] in ENDED)
    assert operations.training(toys.run), operations.state(flow_run)
    return flow_run


@pytest.fixture(scope="module")
def tracking(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database of MLflow's."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


Act = Callable[[Operations, str], object]


def paused(name: str, seconds: float = 900) -> Act:
    """What the UI's Suspend does, and Pause."""

    def act(operations: Operations, flow_run: str) -> None:
        expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))
        details = {"pause_timeout": expires, "pause_reschedule": True}
        change_state(operations, flow_run, "PAUSED", name, state_details=details)

    return act


suspend = paused("Suspended")


def change_state(
    operations: Operations, flow_run: str, kind: str, name: str, force: bool = False, **more: Any
) -> None:
    asked = {"state": {"type": kind, "name": name, **more}, "force": force}
    answer = operations.call(f"/flow_runs/{flow_run}/set_state", asked)
    assert answer["status"] == "ACCEPT", answer


def engine(operations: Operations) -> psutil.Process:
    """The flow's process."""
    lines = {process: " ".join(process.cmdline()) for process in operations.processes()}
    return next(process for process, line in lines.items() if "prefect.engine" in line)


def kill_engine(number: signal.Signals) -> Act:
    return lambda operations, flow_run: engine(operations).send_signal(number)


def resume(operations: Operations, flow_run: str) -> None:
    operations.call(f"/flow_runs/{flow_run}/resume", {})


def saved(operations: Operations, toys: Toys) -> int:
    (checkpoint,) = (operations.runs / toys.run).glob("train-*/_checkpoint")
    return int(checkpoint.read_text())


def resumed(operations: Operations, toys: Toys) -> int:
    manifest = artifact.read_manifest(str(operations.runs / toys.run / "train"))
    return int(manifest.summary["resumed"])


@dataclass(frozen=True)
class Way:
    """A way to stop. Attributes: state: of Prefect, with `status`; saves: else it goes on from a
    periodic checkpoint; again: what continues it.
    """

    act: Act
    state: str
    status: str
    again: Act
    saves: bool = True


retry: Act = Operations.retry
WAYS = {
    "Cancel": Way(Operations.cancel, "Cancelled", "cancelled", retry),
    "Suspend": Way(suspend, "Suspended", "cancelled", resume),
    "Pause": Way(paused("Paused"), "Suspended", "cancelled", resume),
    "state changed to Cancelled by hand": Way(
        lambda operations, run: change_state(operations, run, "CANCELLED", "Cancelled", force=True),
        "Cancelled", "cancelled", retry,
    ),
    "state changed to Failed by hand": Way(
        lambda operations, run: change_state(operations, run, "FAILED", "Failed", force=True),
        "Cancelled", "cancelled", retry,
    ),
    "SIGTERM to the flow's process": Way(kill_engine(signal.SIGTERM), "Crashed", "crashed", retry),
    "SIGKILL to the flow's process": Way(
        kill_engine(signal.SIGKILL), "Crashed", "crashed", retry, saves=False
    ),
}  # fmt: skip


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS, ids=lambda way: re.sub(r"\W+", "-", way))
def test_what_is_done_to_a_flow_run(
    operations: Operations, toys: Toys, tracking: str, way: str
) -> None:
    how = WAYS[way]
    flow_run = training(operations, toys)
    until(lambda: saved(operations, toys) >= 20)
    began = time.monotonic()
    how.act(operations, flow_run)
    until(lambda: not operations.processes(), 90)
    seconds = time.monotonic() - began
    until(lambda: operations.state(flow_run)["name"] == how.state)
    record = until(lambda: _settled(operations, toys))
    step, state = saved(operations, toys), mlflow(operations.runs, tracking, toys.run)
    time.sleep(5)  # a worker has the last word on its flow's process
    assert operations.state(flow_run)["name"] == how.state
    toys.hold.unlink()
    how.again(operations, flow_run)
    until(lambda: operations.state(flow_run)["type"] == "COMPLETED")
    status = f"{record['state']}, {record['nodes']['train']['state']}"
    again = f"{'Resume' if how.again is resume else 'Retry'}: from {resumed(operations, toys)}"
    Row(way, seconds, how.state, status, state, f"step {step}", again).keep()
    assert record["state"] == how.status
    assert resumed(operations, toys) == step
    assert (step % 10 > 0) == how.saves
    assert state == "KILLED"


def _settled(operations: Operations, toys: Toys) -> dict[str, Any]:
    """The record of a run that has ended, else nothing."""
    record = status_file.read(operations.runs, toys.run)
    return {} if record["state"] == status_file.RUNNING else record


@pytest.mark.soak
def test_a_deleted_flow_run_saves_and_ends(
    operations: Operations, toys: Toys, tracking: str
) -> None:
    flow_run = training(operations, toys)
    began = time.monotonic()
    operations.delete(f"/flow_runs/{flow_run}")
    until(lambda: not operations.processes(), 90)
    seconds = time.monotonic() - began
    record, step = _settled(operations, toys), saved(operations, toys)
    why = f"training was stopped after step {step}, checkpoint saved"
    assert record["error"] == f"deleted in Prefect: {why}"
    state = mlflow(operations.runs, tracking, toys.run)
    toys.hold.unlink()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "resume", toys.run, "--no-prefect"],
        env=operations.environment, cwd=operations.home, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    status = f"{record['state']}, {record['nodes']['train']['state']}"
    again = f"`cloze resume`: from {resumed(operations, toys)}"
    Row("Delete of the flow run", seconds, "–", status, state, f"step {step}", again).keep()
    assert resumed(operations, toys) == step
    assert status == "cancelled, stopped"


@pytest.mark.soak
def test_a_machine_that_was_asleep_goes_on(
    operations: Operations, toys: Toys, tracking: str
) -> None:
    """Prefect takes it for dead after 90 s; it says that it lives."""
    assert cloze(operations, "deploy").returncode == 0  # with the automation for silent runs
    flow_run = training(operations, toys)
    family = operations.processes()
    for process in family:
        process.suspend()
    state = until(lambda: (now := operations.state(flow_run))["type"] == "CRASHED" and now)
    assert "no heartbeat" in state["message"]
    before = saved(operations, toys)
    for process in family:
        process.resume()
    until(lambda: operations.state(flow_run)["type"] == "RUNNING")
    toys.hold.unlink()
    state = operations.end(flow_run)
    assert state["type"] == "COMPLETED", state["message"]
    assert saved(operations, toys) >= before
    assert resumed(operations, toys) == 0  # it is the same process
    record = status_file.read(operations.runs, toys.run)
    Row(
        "machine asleep for more than 90 s", None, "Crashed, then Running, Completed",
        record["state"], mlflow(operations.runs, tracking, toys.run), "–", "goes on by itself",
    ).keep()  # fmt: skip
    assert record["state"] == "finished"


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


def resume_workers(operations: Operations) -> None:
    for process in psutil.process_iter():
        if operations.is_worker(process):
            process.resume()


@pytest.fixture
def worker(operations: Operations) -> Iterator[subprocess.Popen[bytes]]:
    """Cloze's worker instead of the others'; they take their turn again afterwards."""
    for other in psutil.process_iter():
        if operations.is_worker(other):
            other.suspend()
    arguments = ["--pool", "cloze", "--type", "process", "--name", "ours"]
    process = subprocess.Popen(
        [sys.executable, "-m", "cloze.flows.prefect.worker", *arguments],
        env=operations.environment,
        cwd=operations.home,
    )
    yield process
    process.kill()
    process.wait()
    resume_workers(operations)


@pytest.mark.soak
def test_a_worker_that_is_asked_to_end_lets_its_trainings_save(
    operations: Operations, toys: Toys, worker: subprocess.Popen[bytes], tracking: str
) -> None:
    flow_run = training(operations, toys)
    began = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(90) == 0
    seconds = time.monotonic() - began
    assert not operations.processes()
    state = operations.state(flow_run)
    assert state["type"] == "CRASHED"
    assert "training was stopped after step" in state["message"]
    told(operations, toys, tracking, "SIGTERM to Cloze's worker; container stop", seconds)
    assert saved(operations, toys) % 10 > 0


def told(operations: Operations, toys: Toys, tracking: str, way: str, seconds: float) -> None:
    """Keep the row of a worker's end, whose flow run is Crashed."""
    record = until(lambda: _settled(operations, toys))
    status = f"{record['state']}, {record['nodes']['train']['state']}"
    state, step = mlflow(operations.runs, tracking, toys.run), saved(operations, toys)
    Row(way, seconds, "Crashed", status, state, f"step {step}", "Retry").keep()
    assert record["state"] == "crashed"
    assert state == "KILLED"


@pytest.mark.soak
def test_a_killed_worker_of_clozes_lets_its_trainings_save(
    operations: Operations, toys: Toys, worker: subprocess.Popen[bytes], tracking: str
) -> None:
    flow_run = training(operations, toys)
    began = time.monotonic()
    worker.kill()
    until(lambda: not operations.processes(), 90)
    seconds = time.monotonic() - began
    assert "training was stopped after step" in operations.state(flow_run)["message"]
    told(operations, toys, tracking, "SIGKILL to Cloze's worker", seconds)
    assert saved(operations, toys) % 10 > 0


@contextlib.contextmanager
def only(operations: Operations, automation: bool) -> Iterator[None]:
    """Meanwhile the automations of `cloze deploy` are switched on, or off."""
    assert cloze(operations, "deploy").returncode == 0
    found = [f"/automations/{each['id']}" for each in operations.call("/automations/filter", {})]
    try:
        for path in found:
            operations.call(path, {"enabled": automation}, method="PATCH")
        yield
    finally:
        for path in found:
            operations.call(path, {"enabled": True}, method="PATCH")


def _sweep(operations: Operations) -> list[str]:
    return sweep.sweep(operations.runs, operations.api)


@pytest.mark.soak
@pytest.mark.parametrize("who", ["automation", "sweep"])
def test_prefects_own_worker_kills_its_flows_at_sigterm_and_tells_nobody(
    operations: Operations,
    toys: Toys,
    worker: subprocess.Popen[bytes],
    tracking: str,
    who: str,
) -> None:
    """The flow run stays Running until its silence is noticed, or its missing process: by `cloze
    ui` each minute, or by `cloze doctor --fix`.
    """
    with only(operations, automation=who == "automation"):
        flow_run = training(operations, toys)
        until(lambda: saved(operations, toys) >= 20)
        (inner,) = psutil.Process(worker.pid).children()
        began = time.monotonic()
        inner.terminate()
        until(lambda: not operations.processes(), 90)
        seconds = time.monotonic() - began
        step = saved(operations, toys)
        assert step % 10 == 0  # nothing was saved
        assert operations.state(flow_run)["type"] == "RUNNING"
        if who == "sweep":
            name = operations.call(f"/flow_runs/{flow_run}")["name"]  # it may find others', too
            until(lambda: any(f"flow run {name}:" in told for told in _sweep(operations)))
        assert ("no heartbeat" in operations.end(flow_run)["message"]) == (who == "automation")
    way = f"SIGTERM to `prefect worker start` itself, found by the {who}"
    resume_workers(operations)
    toys.hold.unlink()
    record = until(lambda: _settled(operations, toys))
    state = mlflow(operations.runs, tracking, toys.run)
    operations.retry(flow_run)
    until(lambda: operations.state(flow_run)["type"] == "COMPLETED")
    status = f"{record['state']}, {record['nodes']['train']['state']}"
    again = f"Retry: from {resumed(operations, toys)}"
    Row(way, seconds, "Running, then Crashed", status, state, f"step {step}", again).keep()
    assert (status, state) == ("crashed, crashed", "KILLED")
    assert resumed(operations, toys) == step


@pytest.mark.soak
def test_prefects_own_worker_that_is_killed_lets_its_trainings_save(
    operations: Operations, toys: Toys, worker: subprocess.Popen[bytes], tracking: str
) -> None:
    """Without an automation: the flow itself notices."""
    flow_run = training(operations, toys)
    (inner,) = psutil.Process(worker.pid).children()
    began = time.monotonic()
    inner.kill()
    until(lambda: not operations.processes(), 90)
    seconds = time.monotonic() - began
    assert "its worker is gone: training was stopped" in operations.state(flow_run)["message"]
    told(operations, toys, tracking, "SIGKILL to `prefect worker start` itself", seconds)
    assert saved(operations, toys) % 10 > 0


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.soak)]
)
def test_a_worker_without_runs_ends_at_once(
    operations: Operations, worker: subprocess.Popen[bytes], number: signal.Signals
) -> None:
    until(lambda: psutil.Process(worker.pid).children())
    worker.send_signal(number)
    assert worker.wait(60) == 0
