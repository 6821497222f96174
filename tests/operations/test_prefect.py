"""A day as an operator of Prefect: nodes as task runs, reruns, cancels, lost workers, limits. On a
real server with a real worker.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cloze.core.artifacts import artifact
from cloze.flows.run import status_file
from tests.operations.conftest import Toys
from tests.operations.servers import PLANTED, Operations, cloze, until
from tests.slices import few

pytestmark = pytest.mark.timeout(600)
TWO = {"processes": 2, "grace_seconds": 5}


def test_what_failed_and_what_follows_runs_again_by_the_uis_retry(
    operations: Operations, toys: Toys
) -> None:
    config = toys.write(train={"fault": str(toys.fault)}, run={"processes": 2, "retries": 0})
    toys.fault.touch()
    flow_run = operations.trigger(
        "full-run/toys", config=config, retries=2, force=["letters"]
    )  # the config's 0 counts
    state = operations.end(flow_run)
    assert state["type"] == "FAILED"
    assert "a cable was pulled" in state["message"]
    first = operations.tasks(flow_run)
    assert first == {
        "letters": ["Completed"],
        "count": ["Completed"],
        "train": ["Failed"],
    }  # what does not need it is made

    runs = operations.call("/task_runs/filter", {"flow_runs": {"id": {"any_": [flow_run]}}})
    begun = {run["name"]: run["expected_start_time"] for run in runs}
    (ended,) = (run["end_time"] for run in runs if run["name"] == "letters")
    assert (
        min(begun["train"], begun["count"]) >= ended
    )  # Prefect's graph draws no bar for a node that waits

    made = artifact.read_manifest(str(operations.runs / toys.run / "letters")).created
    operations.retry(flow_run)
    state = until(lambda: (now := operations.state(flow_run))["type"] == "COMPLETED" and now)
    assert state["message"] == "1 nodes built, 2 cached"  # `force` counts once
    assert operations.tasks(flow_run, count=2) == {
        "letters": ["Cached"],
        "count": ["Cached"],
        "train": ["Completed"],
    }
    assert artifact.read_manifest(str(operations.runs / toys.run / "letters")).created == made

    shown = operations.artifacts(flow_run)
    bars = [entry for entry in shown if entry["type"] == "progress"]
    assert bars
    assert max(float(bar["data"]) for bar in bars) == 100.0
    pages = {entry["key"]: entry["data"] for entry in shown if entry["type"] == "markdown"}
    page = next(text for key, text in pages.items() if key.endswith("-train"))
    assert str(operations.runs / toys.run / "train-") in page
    assert "| resumed | 0 |" in page
    texts = [text for _, text in operations.logs(flow_run)]
    assert any("a cable was pulled" in text for text in texts)
    assert any(text.startswith("Reason to run: not made yet. Artifact: ") for text in texts)
    assert [text for text in texts if "Traceback" in text] == []


@pytest.mark.soak
def test_a_failure_that_may_pass_is_tried_again_and_bad_input_is_not(
    operations: Operations, toys: Toys
) -> None:
    config = toys.write(train={"fault": str(toys.fault)}, run={"retry_seconds": 0.1})
    toys.fault.touch()
    passing = operations.trigger("full-run/toys", config=config, retries=1)
    bad = toys.path.with_name(f"{toys.run}-bad.yaml")
    bad.write_text(json.dumps({"letters": {}, "train": {"bad": True}}))
    failing = operations.trigger("full-run/toys", config=str(bad), retries=2)
    assert operations.end(passing)["type"] == "COMPLETED"
    state = operations.end(failing)
    assert (state["type"], state["message"]) == ("FAILED", "shard 3 is cut short; make it again")
    runs = operations.call(
        "/task_runs/filter",
        {
            "flow_runs": {"id": {"any_": [passing, failing]}},
            "task_runs": {"name": {"any_": ["train"]}},
        },
    )
    assert sorted((run["state_name"], run["run_count"]) for run in runs) == [
        ("Completed", 2),
        ("Failed", 1),
    ]
    assert not any("Traceback" in text for _, text in operations.logs(failing))


@pytest.mark.soak
def test_a_failed_start_says_why_in_one_sentence(operations: Operations, toys: Toys) -> None:
    flow_run = operations.trigger("full-run/toys", config=toys.write(train={"sede": 3}))
    state = operations.end(flow_run)
    assert state["type"] == "FAILED"
    assert "did you mean 'seed'" in state["message"]
    assert "\n" not in state["message"]
    assert operations.tasks(flow_run) == {}
    errors = until(lambda: [text for level, text in operations.logs(flow_run) if level >= 40])
    assert errors[0] == state["message"]
    assert not any("Traceback" in text for text in errors)


def test_a_worker_that_lacks_the_directory_says_so_in_the_log(
    operations: Operations, toys: Toys
) -> None:
    deployment = operations.call("/deployments/name/full-run/toys")["id"]
    there = {"job_variables": {"env": {"CLOZE_HOME": "/not/on/this/machine"}}}
    run = operations.call(
        f"/deployments/{deployment}/create_flow_run",
        {"parameters": {"config": toys.write()}, **there},
    )
    assert operations.end(run["id"])["type"] == "CRASHED"
    errors = until(lambda: [text for level, text in operations.logs(run["id"]) if level >= 40])
    assert any(
        "cannot work in /not/on/this/machine (No such file or directory); create or mount" in text
        for text in errors
    )


def _step(operations: Operations, toys: Toys) -> int:
    """What the toy training has counted to."""
    return max(
        (
            int(place.read_text())
            for place in (operations.runs / toys.run).glob("train-*/_checkpoint")
        ),
        default=0,
    )


def _cancelled(
    operations: Operations, toys: Toys, deaf: int | None, run: Mapping[str, Any] = TWO
) -> int:
    """Cancel a training in Prefect, and look that nothing is left but its checkpoint; the step of
    that.
    """
    toys.hold.touch()
    before = _step(operations, toys)
    config = toys.write(train={"hold": str(toys.hold), "deaf": deaf}, run=run)
    flow_run = operations.trigger("full-run/toys", config=config, only=["train", "letters"])
    until(lambda: _step(operations, toys) > before)
    operations.cancel(flow_run)
    assert operations.end(flow_run)["type"] == "CANCELLED"
    until(lambda: not operations.processes(), 15)
    tasks = operations.tasks(flow_run)
    assert tasks["train"] == ["Cancelled"]
    assert tasks["letters"] in (["Completed"], ["Cached"])
    found = status_file.read(operations.runs, toys.run)
    assert found["state"] == "cancelled"
    assert found["error"].startswith("training was stopped after step")
    return _step(operations, toys)


@pytest.mark.parametrize("deaf", few([None, 1]))
def test_a_cancelled_training_leaves_a_checkpoint_and_no_process(
    operations: Operations, toys: Toys, deaf: int | None
) -> None:
    assert _cancelled(operations, toys, deaf) > 0


@pytest.mark.soak
def test_a_training_over_two_nodes_is_cancelled_and_gone_on_with(
    operations: Operations, toys: Toys
) -> None:
    nodes = {"launcher": "here", "nodes": 2, "resources": {"cpus": 1}}
    step = _cancelled(operations, toys, None, nodes)
    assert step > 0
    (directory,) = (operations.runs / toys.run).glob("train-*/")
    assert len(list(directory.glob("_logs/launches/*/node*.jsonl"))) == 2  # an agent each
    toys.hold.unlink()
    flow_run = operations.trigger("full-run/toys", config=str(toys.path), only=["train", "letters"])
    state = operations.end(flow_run)
    assert state["type"] == "COMPLETED", state["message"]
    assert json.loads((directory / "manifest.json").read_text())["summary"]["resumed"] >= step


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_twenty_cancels(operations: Operations, toys: Toys) -> None:
    steps = [_cancelled(operations, toys, None) for _ in range(20)]
    assert steps == sorted(set(steps))  # each went on from the checkpoint of the one before


@pytest.mark.soak
def test_a_killed_worker_takes_its_flow_with_it_and_a_rerun_goes_on(
    operations: Operations, toys: Toys
) -> None:
    toys.hold.touch()
    config = toys.write(train={"hold": str(toys.hold)}, run=TWO)
    flow_run = operations.trigger("full-run/toys", config=config)
    until(lambda: operations.training(toys.run))
    engine = next(
        process
        for process in operations.processes()
        if "prefect.engine" in " ".join(process.cmdline())
    )
    os.kill(engine.ppid(), signal.SIGKILL)
    state = operations.end(flow_run)
    operations.worker()
    assert state["type"] == "CRASHED"
    assert "its worker is gone" in state["message"]
    until(lambda: not operations.processes(), 15)  # the record is written after Prefect's state
    found = status_file.read(operations.runs, toys.run)
    assert (found["state"], "its worker is gone" in found["error"]) == ("crashed", True)
    (checkpoint,) = (operations.runs / toys.run).glob("train-*/_checkpoint")
    saved = int(checkpoint.read_text())

    toys.hold.unlink()
    operations.retry(flow_run)
    assert until(lambda: (now := operations.state(flow_run))["type"] == "COMPLETED" and now)
    assert (
        artifact.read_manifest(str(operations.runs / toys.run / "train")).summary["resumed"]
        == saved
    )


@pytest.mark.soak
def test_a_run_of_a_lost_machine_is_found_by_its_silence(
    operations: Operations, toys: Toys
) -> None:
    """Worker and flow are killed at one moment, so nobody is left to tell."""
    assert cloze(operations, "deploy").returncode == 0
    toys.hold.touch()
    flow_run = operations.trigger(
        "full-run/toys", config=toys.write(train={"hold": str(toys.hold)}, run=TWO)
    )
    until(lambda: operations.training(toys.run))
    engine = next(
        process
        for process in operations.processes()
        if "prefect.engine" in " ".join(process.cmdline())
    )
    worker = engine.ppid()
    os.kill(worker, signal.SIGSTOP)
    engine.kill()
    os.kill(worker, signal.SIGKILL)
    state = operations.end(flow_run)
    operations.worker()
    assert state["type"] == "CRASHED"
    assert "no heartbeat" in state["message"]
    assert not operations.processes()  # the kernel has ended the ranks
    toys.hold.unlink()
    done = cloze(operations, "status", toys.run, "--json")
    assert '"crashed"' in done.stdout


@pytest.mark.soak
def test_a_matrix_with_one_that_fails(operations: Operations, toys: Toys) -> None:
    toys.path.with_name(f"{toys.run}-2.fault").touch()
    rows = {
        "x": {"seed": 1, "fault": f"{toys.fault.with_suffix('')}-{{size}}.fault"},
        "y": {"seed": 2},
        "z": {"seed": 3},
    }
    config = toys.write(
        letters={"matrix": {"size": [2, 3]}},
        train={"matrix": {"row": rows}},
        run={"oversubscribe": True},
    )
    flow_run = operations.trigger(
        "full-run/toys", config=config, retries=0, only=["letters", "train"]
    )
    state = operations.end(flow_run)
    assert state["type"] == "FAILED"
    states = [name for names in operations.tasks(flow_run).values() for name in names]
    assert sorted(states) == ["Completed"] * 7 + ["Failed"]
    operations.retry(flow_run)
    assert (
        until(lambda: (now := operations.state(flow_run))["type"] == "COMPLETED" and now)["message"]
        == "1 nodes built, 7 cached"
    )


@pytest.mark.soak
def test_two_runs_share_the_slots_of_the_machine(operations: Operations, toys: Toys) -> None:
    """A training that wants all cores waits for one of another run that has them."""
    toys.hold.touch()
    other = Toys(toys.path.with_name(f"{toys.run}-other.yaml"))
    run = {"resources": {"cpus": 4096}}
    first = operations.trigger(
        "full-run/toys",
        config=toys.write(train={"hold": str(toys.hold)}, run=run),
        only=["train", "letters"],
    )
    until(lambda: operations.training(toys.run))
    second = operations.trigger(
        "full-run/toys", config=other.write(run=run), only=["train", "letters"]
    )
    until(lambda: "Running" in operations.tasks(second).get("letters", []))
    assert operations.state(first)["type"] == operations.state(second)["type"] == "RUNNING"
    assert not list((operations.runs / other.run).glob("letters-*/manifest.json"))
    toys.hold.unlink()
    assert operations.end(first)["type"] == "COMPLETED"
    assert operations.end(second)["type"] == "COMPLETED"


@pytest.mark.soak
def test_a_run_that_overlaps_is_refused_where_its_deployment_says_so(
    operations: Operations, toys: Toys
) -> None:
    toys.hold.touch()
    config = toys.write(train={"hold": str(toys.hold)})
    first = operations.trigger("full-run/one-at-a-time", config=config)
    until(lambda: operations.training(toys.run))
    second = operations.trigger("full-run/one-at-a-time", config=config)
    assert operations.end(second)["type"] == "CANCELLED"
    third = operations.trigger(
        "full-run/toys", config=config
    )  # a deployment without the limit: the run's directory is in use
    state = operations.end(third)
    assert state["type"] == "FAILED"
    assert (
        "in use" in state["message"] or "held" in state["message"] or "process" in state["message"]
    )
    toys.hold.unlink()
    assert operations.end(first)["type"] == "COMPLETED"


@pytest.mark.soak
def test_cancel_from_the_terminal_ends_cancelled_too(operations: Operations, toys: Toys) -> None:
    toys.hold.touch()
    flow_run = operations.trigger(
        "full-run/toys", config=toys.write(train={"hold": str(toys.hold)}, run=TWO)
    )
    until(lambda: operations.training(toys.run))
    done = cloze(operations, "cancel", toys.run, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == "cancelled"
    assert operations.end(flow_run)["type"] == "CANCELLED"
    assert not [
        line
        for line in Path(operations.home / "worker.log").read_text().splitlines()
        if "Crashed" in line and toys.run in line
    ]


@pytest.mark.soak
def test_a_schedule_fires(operations: Operations, toys: Toys) -> None:
    deployment = operations.call("/deployments/name/full-run/toys")["id"]
    # A run takes seconds: one each 5 s would bury a busy machine, and whatever runs beside it.
    soon = (datetime.now(UTC) + timedelta(seconds=10)).isoformat()
    schedule = {
        "schedule": {"interval": 60, "anchor_date": soon},
        "active": True,
        "parameters": {"config": toys.write()},
    }
    operations.call(f"/deployments/{deployment}/schedules", [schedule])
    begun = {
        "deployments": {"id": {"any_": [deployment]}},
        "flow_runs": {"state": {"type": {"any_": ["RUNNING", "COMPLETED", "FAILED"]}}},
    }
    try:
        found = until(
            lambda: [
                run for run in operations.call("/flow_runs/filter", begun) if run["auto_scheduled"]
            ]
        )
    finally:
        (one,) = operations.call(f"/deployments/{deployment}/schedules")
        operations.delete(f"/deployments/{deployment}/schedules/{one['id']}")
    assert operations.end(found[0]["id"])["type"] == "COMPLETED"
    assert (operations.runs / toys.run / "train").exists()


def test_a_secret_is_nowhere(operations: Operations, toys: Toys) -> None:
    """One that an error speaks of: in no state, log, parameter or page."""
    flow_run = operations.trigger(
        "full-run/toys", config=toys.write(train={"leaky": True}), retries=0
    )
    assert "the store refused ***" in operations.end(flow_run)["message"]
    until(lambda: [text for level, text in operations.logs(flow_run) if level >= 40])
    tasks = operations.call("/task_runs/filter", {"flow_runs": {"id": {"any_": [flow_run]}}})
    all_of_it = [
        operations.call(f"/flow_runs/{flow_run}"),
        tasks,
        operations.logs(flow_run),
        operations.artifacts(flow_run),
    ]
    assert "the store refused ***" in json.dumps(all_of_it[1])
    assert PLANTED not in json.dumps(all_of_it)
    assert PLANTED not in (operations.home / "worker.log").read_text()
