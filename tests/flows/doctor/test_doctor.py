"""`cloze doctor` finds what is wrong on real processes, locks and records, says what to do, and
does it when it is told to.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from cloze.core.artifacts import lock
from cloze.core.processes import PARENT_PID
from cloze.flows.cli import main
from cloze.flows.doctor import machine, runs
from cloze.flows.doctor.machine import Finding, run_check
from cloze.flows.run import server_addresses, status_file
from cloze.flows.tracking.spool_state import add_dead_letter, count_dead_letters
from cloze.flows.ui import processes
from tests.conftest import REPOSITORY
from tests.flows.ui.waiting import is_gone, number

HOLDER = """
import sys, time
from cloze.flows.machine import slots
there = slots.MachineResources(cores=("0", "1"), gpus=())
with slots.acquire(slots.ResourceRequest(cpus=2), there, sys.argv[1], "pretrain", lambda: False, lambda: None):
    print("held", flush=True)
    time.sleep(120)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runs' directory and slots of the test's own."""
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("CLOZE_SLOTS_DIR", str(tmp_path / "slots"))
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def gone() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def write_record(place: Path, name: str, how: str, pid: int) -> Path:
    directory = place / name / status_file.DIRECTORY
    directory.mkdir(parents=True)
    nodes = {
        "pretrain": {
            "stage": "pretrain",
            "state": "running",
            "after": [],
            "artifact": "a",
            "why": "",
        }
    }
    content = {
        "run": name,
        "state": how,
        "pid": pid,
        "host": os.uname().nodename,
        "started": 1.0,
        "ended": None,
        "prefect": None,
        "nodes": nodes,
    }
    (directory / "1.json").write_text(json.dumps(content))
    return directory / "1.json"


def test_what_is_mended_is_what_the_check_finds_no_more() -> None:
    wrong = {"a", "b", "c"}

    def check() -> Iterator[Finding]:
        yield Finding(check="fine", observed="fine")
        for name in sorted(wrong):
            mends = {"a": lambda: wrong.discard("a"), "b": lambda: None}
            yield Finding(
                check=name, observed="bad", ok=False, fix="mend it", repair=mends.get(name)
            )

    assert [(found.check, found.fixed) for found in run_check(check, fix=False)] == [
        ("fine", False),
        ("a", False),
        ("b", False),
        ("c", False),
    ]
    assert wrong == {"a", "b", "c"}
    assert [(found.check, found.fixed) for found in run_check(check, fix=True)] == [
        ("a", True),
        ("fine", False),
        ("b", False),
        ("c", False),
    ]


def test_a_mending_that_fails_says_why() -> None:
    def fail() -> None:
        raise OSError("the disk is full")

    (found,) = run_check(
        lambda: [Finding(check="a", observed="bad", ok=False, fix="mend it", repair=fail)], fix=True
    )
    assert (found.fixed, found.failed, found.row()["failed"]) == (
        False,
        "the disk is full",
        "the disk is full",
    )


@pytest.mark.parametrize(
    ("package", "version", "fix"),
    [("fastapi", "0.151.0", "fastapi<0.151"), ("sqlalchemy", "2.1.0", "sqlalchemy<2.1")],
)
def test_versions_that_install_and_do_not_work_are_told(
    monkeypatch: pytest.MonkeyPatch, package: str, version: str, fix: str
) -> None:
    real = metadata.version
    assert all(found.ok for found in machine.packages())
    monkeypatch.setattr(
        metadata, "version", lambda name: version if name == package else real(name)
    )
    (wrong,) = [found for found in machine.packages() if not found.ok]
    assert (wrong.check, wrong.fix) == (package, f"pip install '{fix}'")
    assert "Prefect's server" in wrong.observed
    assert any(
        found.check == "versions" and f"{package} {version} (tested: " in found.observed
        for found in machine.packages()
    )


@pytest.mark.parametrize(
    ("missing", "failed"),
    [(("torch", "deepspeed"), set()), (("torch",), {"torch"}), (("apache-beam",), set())],
)
def test_a_host_may_lack_whole_extras(
    monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...], failed: set[str]
) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name in missing:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    assert {finding.check for finding in machine.packages() if not finding.ok} == failed


def test_no_compiler_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (found,) = machine.compiler()
    assert found.ok
    assert found.observed.startswith("none")


def test_what_torch_computes_on_is_told() -> None:
    found = {finding.check: finding for finding in machine.devices()}
    assert found["devices"].ok
    assert ("nccl" in found) == ("no GPU" not in found["devices"].observed)


@pytest.mark.parametrize("hanging", ["nvidia-smi", "torch"])
def test_a_driver_that_does_not_answer_is_told(
    hanging: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    if hanging == "torch":
        monkeypatch.setattr(machine, "TORCH_TIMEOUT", 1.0)
        monkeypatch.setattr(machine, "_TORCH", "import time; time.sleep(60)")
    monkeypatch.setattr(machine, "DRIVER_TIMEOUT", 1.0)
    (found,) = machine.devices()
    assert not found.ok
    assert found.observed == "the GPU driver does not answer within 1 s"
    assert "nvidia-smi" in found.fix


def test_a_run_whose_process_is_gone_is_marked(place: Path, gone: int) -> None:
    stuck, goes = (
        write_record(place, "stuck", "running", gone),
        write_record(place, "goes", "running", os.getpid()),
    )
    with lock.locked(str(place / "goes")):
        (found,) = run_check(runs.stuck, fix=False)
        assert (found.ok, found.observed) == (False, "run stuck: its process is gone")
        assert json.loads(stuck.read_text())["state"] == "running"
        (found,) = run_check(runs.stuck, fix=True)
        assert found.fixed
        assert json.loads(stuck.read_text())["state"] == "crashed"
        assert json.loads(goes.read_text())["state"] == "running"


def test_an_orphan_is_found_and_ended_and_others_are_left_alone(
    place: Path, gone: int, tmp_path: Path
) -> None:
    toy = [sys.executable, "-m", "tests.flows.ui.toy"]
    started = [
        subprocess.Popen(
            [*toy, str(tmp_path / name), "serve"], cwd=REPOSITORY, env={**os.environ, **extra}
        )
        for name, extra in (
            ("orphan", {PARENT_PID: str(gone)}),
            ("child", {PARENT_PID: str(os.getpid())}),
            ("stranger", {}),
        )
    ]
    shell = [
        "bash",
        "-c",
        f"{' '.join(toy)} {tmp_path}/left serve > /dev/null 2>&1 &",
    ]  # of nobody here
    mark = {**os.environ, processes.MARK: str(server_addresses.directory(place).resolve())}
    subprocess.run(shell, cwd=REPOSITORY, env=mark, check=True)
    try:
        orphan, child, stranger, left = (
            number(tmp_path / name / "server") for name in ("orphan", "child", "stranger", "left")
        )
        mine = {orphan, child, stranger, left}

        def found() -> set[int]:
            return mine.intersection(int(finding.observed.split()[1]) for finding in runs.orphans())

        assert found() == {orphan, left}
        with lock.locked(str(server_addresses.directory(place))):  # the supervisor lives
            assert found() == {orphan}
        # Only these are ended: other tests of this machine may have orphans of their own just now.
        for finding in runs.orphans():
            if int(finding.observed.split()[1]) in mine:
                assert finding.repair is not None
                assert not finding.ok
                finding.repair()
        assert (tmp_path / "orphan" / "saved").exists()
        assert (tmp_path / "left" / "saved").exists()
        assert is_gone(left)
        assert [process.poll() for process in started] == [0, None, None]
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_slots_are_shown_and_one_that_a_finished_run_holds_is_freed(place: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, "over"], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        (found,) = run_check(runs.occupied_slots, fix=True)
        assert found.ok
        assert found.observed.startswith(
            f"cpu-0, cpu-1: pretrain of run over, process {holder.pid}, for "
        )
        write_record(place, "over", "finished", holder.pid)
        (found,) = run_check(runs.occupied_slots, fix=True)
        assert found.fixed
        assert holder.wait(10) is not None
        assert run_check(runs.occupied_slots, fix=False) == []
    finally:
        holder.kill()
        holder.wait()
        if holder.stdout is not None:
            holder.stdout.close()


def test_servers_that_do_not_answer_are_told_without_their_passwords(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://somebody:hunter2@127.0.0.1:9")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    wrong = [found for found in runs.servers() if not found.ok]
    assert [found.check for found in wrong] == ["PREFECT_API_URL", "MLFLOW_TRACKING_URI"]
    assert wrong[1].observed == "http://127.0.0.1:9 does not answer"


def test_a_server_that_restarts_again_and_again_is_told_with_its_log(place: Path) -> None:
    service = {
        "title": "MLflow",
        "address": "http://127.0.0.1:5000",
        "restarts": 4,
        "last": "ended with exit code 1 (no)",
        "log": "/x/mlflow.log",
    }
    with lock.locked(str(server_addresses.directory(place))):
        server_addresses.write(
            place,
            {
                "pid": 7,
                "services": {
                    "mlflow": {**service, "state": "waiting"},
                    "b": {**service, "title": "B", "state": "up"},
                },
            },
        )
        told = {found.check: found for found in runs.servers()}
    assert (told["MLflow"].ok, told["B"].ok) == (False, True)
    assert "restarted 4 times; last: ended with exit code 1 (no)" in told["MLflow"].observed
    assert "/x/mlflow.log" in told["MLflow"].fix


def test_the_command_tells_mends_and_ends_with_the_right_code(
    place: Path, gone: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # There may be orphans of others on this machine, which are not this test's to end. The command
    # reads the tables of checks: a function that is replaced in its module alone would still run.
    for module, left_out in ((runs, runs.orphans), (machine, machine.devices)):  # devices are slow
        checks = tuple(check for check in module.CHECKS if check is not left_out)
        assert len(checks) == len(module.CHECKS) - 1
        monkeypatch.setattr(module, "CHECKS", checks)
    monkeypatch.setattr(runs, "_end", lambda pids: pytest.fail(f"a test would end {pids}"))
    monkeypatch.setattr(machine, "FREE_BYTES", 0)
    stuck = write_record(place, "stuck", "running", gone)
    spools = place / ".tracking"
    spools.mkdir()
    for name in ("a", "b"):
        add_dead_letter(
            spools / "1-a.jsonl",
            {"op": "metrics", "run": "r", "metrics": [[name, 1.0, 0, 0]]},
            "Invalid metric name",
        )

    assert main(["doctor", "--json"]) == 1
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    wrong = [row for row in told["checks"] if not row["ok"]]
    assert [(row["check"], row["found"], row["can_fix"]) for row in wrong] == [
        ("stuck run", "run stuck: its process is gone", True),
        ("records", "2 refused by MLflow: Invalid metric name", True),
    ]
    assert all(row["fix"] for row in wrong)
    assert not told["ok"]

    assert main(["doctor", "--fix"]) == 0
    shown = capsys.readouterr().out
    assert "fixed stuck run" in shown
    assert "fixed records" in shown
    assert json.loads(stuck.read_text())["state"] == "crashed"
    assert count_dead_letters(spools).total() == 0
    (again,) = spools.glob("*.jsonl")  # they wait for the next sender
    assert len(again.read_text().splitlines()) == 2
