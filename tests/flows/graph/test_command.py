"""A command as a run of one node: its record, its slots, and how it is cancelled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloze.core.artifacts.lock import locked
from cloze.flows import cli
from cloze.flows.graph import command
from cloze.flows.machine import slots
from cloze.flows.run import cancellation, status_file
from tests.checkout import import_path
from tests.conftest import REPOSITORY
from tests.flows import toy_run
from tests.flows.ui.waiting import until

PROGRAM = """
import sys
from cloze.flows.graph import stages
from cloze.core.plugins import Table
stages.TABLE = Table("toys", "stage", {"toy": "tests.flows.toy:STAGE"})
from cloze.flows import cli; from cloze.flows.run import session
from cloze.flows.machine.slots import ResourceRequest
if "--gpu" in sys.argv:
    sys.argv.remove("--gpu")
    session.resource_request = lambda *_: ResourceRequest(gpus=1, cpus=1)
cli.entry()
"""


def status(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert cli.main(["status", *arguments, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["runs"]
    return found


def start(*arguments: str) -> subprocess.Popen[bytes]:
    """Start the command that makes `mine` in a process of its own."""
    call = [sys.executable, "-c", PROGRAM, "toy", "--out", "mine", *arguments]
    return subprocess.Popen(call, env={**os.environ, "PYTHONPATH": import_path(REPOSITORY)})


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("CLOZE_SLOTS_DIR", str(tmp_path / "slots"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.fixture
def toys(toy_config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy stages are commands."""
    del toy_config
    monkeypatch.setattr(cli, "TABLE", toy_run.TABLE)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def state_of(runs: Path) -> tuple[str, str] | None:
    """The states of the command that makes `mine`, and of its node."""
    found = status_file.newest(status_file.directory_of(runs, "mine"))
    return None if found is None else (found["state"], found["nodes"]["toy"]["state"])


@pytest.mark.usefixtures("toys")
def test_status_lists_commands_beside_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["letters", "--out", "w/mine", "--size", "5"]) == 0
    assert cli.main(["run", "toy.yaml", "--no-prefect"]) == 0
    Path("stop").touch()
    assert cli.main(["count", "--letters", "w/mine", "--out", "w/broken", "--fault", "stop"]) == 1
    found = {row["run"]: row["state"] for row in status(capsys)}
    assert found == {"w/mine": "finished", "toy": "finished", "w/broken": "failed"}
    (row,) = status(capsys, "w/mine/")
    assert (row["run"], row["nodes"]["letters"]["state"]) == ("w/mine", "finished")
    (row,) = status(capsys, str(Path("w/broken").resolve()))
    assert "forbids it" in row["nodes"]["count"]["error"]
    assert cli.main(["count", "--letters", "w/mine", "--out", "w/broken"]) == 0
    assert status(capsys, "w/broken")[0]["state"] == "finished"


def test_a_command_that_was_killed_has_crashed(runs: Path) -> None:
    process = start("--act", "hang")
    try:
        until(lambda: Path("mine/_pid-0").exists() and Path("mine/_pid-0").read_text())
        assert state_of(runs) == ("running", "running")
        assert cancellation.mark_crashed(runs) == []
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert state_of(runs) == ("crashed", "crashed")
    assert cancellation.mark_crashed(runs) == ["mine"]


def test_a_command_that_waits_for_a_gpu_is_queued_and_can_be_cancelled(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = slots.acquire(
        slots.ResourceRequest(gpus=1),
        slots.machine(),
        "first",
        "pretrain",
        lambda: False,
        lambda: None,
    )
    with gpu:
        process = start("--gpu")
        until(lambda: state_of(runs) == ("running", "queued"))
        (row,) = status(capsys, "mine")
        assert "GPU 0 is held by first" in row["nodes"]["toy"]["why"]
        assert cli.main(["cancel", "mine", "--json"]) == 0
        assert process.wait(20) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["state"] == "cancelled"
    assert state_of(runs) == ("cancelled", "stopped")


@pytest.mark.usefixtures("toys")
def test_two_commands_for_one_artifact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with locked(str(command.command_directory(tmp_path / "runs", "mine"))):
        assert cli.main(["letters", "--out", "mine"]) == 2
    assert f"mine is being built by process {os.getpid()}" in capsys.readouterr().err


@pytest.mark.usefixtures("toys")
def test_where_nobody_may_write_below_the_runs_a_command_has_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "file" / "runs"))
    assert cli.main(["letters", "--out", "mine"]) == 0
    assert (tmp_path / "mine" / "manifest.json").exists()
    assert status(capsys) == []


@pytest.mark.usefixtures("toys")
def test_an_artifact_s_directory_that_would_hold_the_runs_holds_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "mine" / "runs"))
    assert cli.main(["letters", "--out", "mine"]) == 0
    assert not (tmp_path / "mine" / "runs").exists()
    assert status(capsys) == []


@pytest.mark.usefixtures("toys")
def test_only_the_newest_commands_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "RETAINED_COMMANDS", 2)
    for name in ("one", "two", "three", "two", "four"):
        assert cli.main(["letters", "--out", name]) == 0
    assert set(status_file.command_records(tmp_path / "runs")) == {"two", "four"}
