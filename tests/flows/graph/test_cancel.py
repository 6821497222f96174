"""Cancelling a run from outside: its process and its ranks end, with a checkpoint where they save
one, also where they heed no signal.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloze.core.errors import DataError, UsageError
from cloze.flows.run import cancellation, status_file, status_writer
from tests.checkout import import_path
from tests.conftest import REPOSITORY

PROGRAM = """
import signal, sys
from cloze.flows.graph import stages
from cloze.flows.tracking.spool import Spool
from cloze.core.plugins import Table
stages.TABLE = Table("toys", "stage", {"toy": "tests.flows.toy:STAGE"})
Spool.start_sender = lambda spool: None
from cloze.flows import cli
if "--ignore" in sys.argv:
    sys.argv.remove("--ignore")
    take = signal.signal
    signal.signal = lambda number, action: take(number, signal.SIG_IGN if number == signal.SIGTERM else action)
cli.entry()
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("CLOZE_SLOTS_DIR", str(tmp_path / "slots"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@contextlib.contextmanager
def running(
    runs: Path, act: str, grace: float, *arguments: str
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A run of one toy stage in a process of its own, and the process of its rank; both are there
    when it begins.
    """
    Path("toy.yaml").write_text(
        f"{{name: toy, toy: {{act: {act}}}, run: {{grace_seconds: {grace}, oversubscribe: true}}}}"
    )
    command = [sys.executable, "-c", PROGRAM, "run", "toy.yaml", "--no-prefect", *arguments]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": import_path(REPOSITORY)},
    )
    try:
        deadline = time.monotonic() + 240
        while not (found := list(runs.glob("toy/toy-*/_pid-0"))) or not found[0].read_text():
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process, int(found[0].read_text())
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def ended(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_alive(pid)


def test_a_training_saves_its_checkpoint_and_nobody_is_left(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancellation, "PATIENCE_SECONDS", 240.0)
    told: list[str] = []
    with running(runs, "slow", 200) as (process, rank):
        found = cancellation.cancel(runs, "toy", told.append)
        assert process.wait(240) == 4
        assert process.stderr is not None
        assert "stopped at step 7, checkpoint saved" in process.stderr.read()
        assert ended(rank)
    assert (found["state"], found["nodes"]["toy"]["state"]) == ("cancelled", "stopped")
    assert "checkpoint saved" in found["nodes"]["toy"]["error"]
    assert told == [
        f"requested process {found['pid']} to end; its trainings have 200 s to save a checkpoint"
    ]


def test_a_rank_that_ignores_the_signal_is_killed_after_its_grace(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancellation, "PATIENCE_SECONDS", 240.0)
    with running(runs, "deaf", 0.5) as (process, rank):
        found = cancellation.cancel(runs, "toy")
        assert process.wait(240) == 1
        assert ended(rank)
    assert found["state"] == "cancelled"


def test_a_run_that_ignores_the_signal_is_killed_with_all_that_it_started(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancellation, "PATIENCE_SECONDS", 2.0)
    told: list[str] = []
    with running(runs, "deaf", 0, "--ignore") as (process, rank):
        found = cancellation.cancel(runs, "toy", told.append)
        assert process.wait(240) == -9
        assert ended(rank), "the kernel ends the rank with it"
    assert (found["state"], found["nodes"]["toy"]["state"]) == ("crashed", "crashed")
    assert any("is killed" in line for line in told)


def test_what_does_not_run_is_told(runs: Path) -> None:
    with pytest.raises(DataError, match="no run 'toy'"):
        cancellation.cancel(runs, "toy")
    (runs / "toy").mkdir(parents=True)
    told = status_writer.RunStatusFile(runs / "toy", "toy", [], {}, {})
    told.end(status_file.FINISHED)
    with pytest.raises(UsageError, match="run toy does not run \\(it is finished\\)"):
        cancellation.cancel(runs, "toy")


def test_the_longest_grace_of_any_node_is_waited_for() -> None:
    assert cancellation.longest_grace({"config": {}}) == 25.0
    assert cancellation.longest_grace({"config": {"run": {"grace_seconds": 3}}}) == 3.0
    assert (
        cancellation.longest_grace(
            {"config": {"run": {"grace_seconds": 3}, "pretrain": {"run": {"grace_seconds": 90}}}}
        )
        == 90.0
    )
    assert (
        cancellation.longest_grace(
            {"config": {"pretrain": {"run": {"grace_seconds": 5}}, "name": "x"}}
        )
        == 25.0
    )
