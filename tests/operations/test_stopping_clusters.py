"""Ways in which schedulers stop a run: Slurm and Kubernetes, both as processes of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.operations.stopping import PATIENCE, Home, Row, Terminal, until
from tests.slurm_running import RunningSlurm

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def tracking(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database of MLflow's."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[RunningSlurm]:
    found = RunningSlurm(tmp_path / "queue")
    yield found
    for process in psutil.process_iter(["cmdline"]):
        if f"tests.slurm_running {found.root}" in " ".join(process.info["cmdline"] or ()):
            process.kill()


@pytest.fixture
def on_slurm(tmp_path: Path, tracking: str, slurm: RunningSlurm) -> Home:
    home = Home(tmp_path / "home", tracking, launcher="slurm", nodes=2, processes=1)
    home.more["PATH"] = slurm.path
    return home


@pytest.fixture
def on_kubernetes(tmp_path: Path, tracking: str) -> Home:
    """Its cluster is in `cluster` beside it."""
    directory = tmp_path / "home"
    options = ["image=a/cloze:1", f"claim=training:{directory}", f"python={sys.executable}"]
    run: dict[str, Any] = {"launcher": "kubernetes", "device": "cpu", "nodes": 2, "processes": 1}
    home = Home(directory, tracking, kubernetes_options=options, **run)
    for name in ("cluster", "bin"):
        (tmp_path / name).mkdir()
    program = tmp_path / "bin" / "kubectl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.labs.kubernetes.kubectl "$@"\n')
    program.chmod(0o755)
    home.more |= {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "CLUSTER": str(tmp_path / "cluster"),
    }
    return home


def goes_on(home: Home, terminal: Terminal, way: str, act: Callable[[], object]) -> int:
    """The step from which a training goes on by itself after an act, then its end."""
    before, began = home.step, time.monotonic()
    act()
    until(lambda: home.step > before + 10)
    seconds = time.monotonic() - began
    home.hold.unlink()
    assert terminal.process.wait(PATIENCE) == 0, terminal.said
    step, status = home.resumed_from, home.status()
    again = f"goes on by itself after {seconds:.0f} s"
    Row(way, None, "–", status, home.mlflow(), f"step {step}", again).keep()
    assert status == "finished, finished"
    assert step >= before
    return step


@pytest.mark.parametrize(
    ("ask", "way", "saves"),
    [
        ("limit", "Slurm's time limit", True),
        ("preempt", "preemption in Slurm", True),
        ("lose", "all nodes of a Slurm job lost", False),
    ],
)
def test_a_job_that_slurm_queues_again(
    on_slurm: Home, slurm: RunningSlurm, ask: str, way: str, saves: bool
) -> None:
    with on_slurm.terminal() as terminal:
        step = goes_on(on_slurm, terminal, way, lambda: slurm.ask(ask))
    assert (step % 10 > 0) == saves


def ends(home: Home, terminal: Terminal, way: str, act: Callable[[], object]) -> None:
    """It saves, says so, and is continued by hand."""
    seconds = terminal.stop(act, processes=1)
    record, status, step, mlflow = home.record, home.status(), home.step, home.mlflow()
    continues = home.resumed()
    Row(way, seconds, "–", status, mlflow, f"step {step}", f"resume: from {continues}").keep()
    assert "checkpoint saved" in record["error"]
    assert continues == step
    assert step % 10 > 0


def test_scancel(on_slurm: Home, slurm: RunningSlurm) -> None:
    with on_slurm.terminal() as terminal:
        ends(on_slurm, terminal, "`scancel`", lambda: slurm.ask("scancel"))


def test_ctrl_c_at_the_follower_of_a_job(on_slurm: Home, slurm: RunningSlurm) -> None:
    with on_slurm.terminal() as terminal:
        ends(on_slurm, terminal, "Ctrl-C at a Slurm job", lambda: terminal.type("\x03"))


def pods(home: Home) -> list[psutil.Process]:
    files = Path(home.more["CLUSTER"]).glob("*/pod-*.json")
    return [psutil.Process(json.loads(file.read_text())["pid"]) for file in files]


@pytest.mark.parametrize(
    ("number", "way"),
    [(signal.SIGTERM, "eviction of the pods"), (signal.SIGKILL, "nodes of the pods lost")],
)
def test_evicted_pods(on_kubernetes: Home, number: signal.Signals, way: str) -> None:
    mark = Path(on_kubernetes.more["CLUSTER"]) / "preempt"

    def evict() -> None:
        mark.touch()
        for pod in pods(on_kubernetes):
            for process in [pod] if number == signal.SIGTERM else pod.children(recursive=True):
                process.send_signal(number)
        until(lambda: "preemption 1" in terminal.said)
        mark.unlink()

    with on_kubernetes.terminal() as terminal:
        step = goes_on(on_kubernetes, terminal, way, evict)
    assert (step % 10 > 0) == (number == signal.SIGTERM)


def test_a_deleted_train_job(on_kubernetes: Home) -> None:
    def delete() -> None:
        (job,) = Path(on_kubernetes.more["CLUSTER"]).glob("*/manifest.json")
        words = ["kubectl", "delete", "trainjobs.trainer.kubeflow.org", job.parent.name]
        subprocess.run(words, env=on_kubernetes.environment(), check=True)

    with on_kubernetes.terminal() as terminal:
        ends(on_kubernetes, terminal, "deleted TrainJob", delete)


def test_the_coordinator_of_a_train_job_is_killed(on_kubernetes: Home) -> None:
    """Its pods train on; who continues lets them save first."""
    home = on_kubernetes
    with home.terminal() as terminal:
        began = time.monotonic()
        terminal.process.kill()
        terminal.process.wait()
        seconds = time.monotonic() - began
    before, status, mlflow = home.step, home.status(), home.mlflow()
    until(lambda: home.step > before)
    with home.terminal() as terminal:
        until(lambda: len(list(home.runs.glob("*/train-*/_logs/launches/*"))) == 2)
        home.hold.unlink()
        assert terminal.process.wait(PATIENCE) == 0, terminal.said
    step = home.resumed_from
    Row(
        "coordinator of a TrainJob killed", seconds, "–", status, mlflow,
        "pods train on", f"same command: from {step}, saved by the pods",
    ).keep()  # fmt: skip
    assert status == "crashed, crashed"
    assert step % 10 > 0
