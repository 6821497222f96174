"""Shared storage that stalls kills no training, and a launch without a coordinator holds no GPUs."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloze.core import identity
from cloze.core.errors import ClozeError
from cloze.core.processes import HeartbeatReader, HeartbeatWriter
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import NULL_REPORTER
from cloze.flows.launch import (
    agent,
    agent_launcher,
    coordinator,
    event_files,
    hang_detection,
    protocol,
)
from cloze.flows.launch.agent import Agent
from cloze.flows.launch.hang_detection import HangDetector
from cloze.flows.launch.protocol import GO, LaunchSpec
from tests.checkout import import_path
from tests.conftest import REPOSITORY
from tests.flows.launch.test_by_agents import left, soon
from tests.flows.launch.test_detached import submit
from tests.flows.launch.test_local import living
from tests.flows.toy import STAGE, ToyConfig
from tests.labs.kubernetes.test_kubernetes import IMAGE
from tests.labs.kubernetes.test_kubernetes import cluster as cluster


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", import_path(REPOSITORY), prepend=os.pathsep)
    monkeypatch.setitem(protocol.LAUNCHERS, "here", "tests.flows.launch.here:LAUNCHER")


def run(out: Path, act: str, launcher: str = "here", **execution: Any) -> BuildResult:
    stage = dataclasses.replace(
        STAGE, run=coordinator.run_in_worker_processes(STAGE, "tests.flows.toy:STAGE")
    )
    how = Execution.model_validate({"launcher": launcher, "grace_seconds": 10, **execution})
    return execute(stage, ToyConfig(act=act), {}, str(out), execution=how, report=NULL_REPORTER)


def test_the_limit_is_one_of_minutes() -> None:
    assert agent_launcher.LOST_SECONDS >= 120


def test_a_stall_that_the_coordinator_shares_is_none_of_the_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storage stands still for coordinator and agents; the ranks go on."""
    monkeypatch.setattr(agent_launcher, "LOST_SECONDS", 5.0)
    out, stalled = tmp_path / "a", threading.Event()
    real, once = event_files.EventReader.read, threading.Lock()

    def read(reader: event_files.EventReader) -> list[dict[str, Any]]:
        if stalled.is_set() and once.acquire(blocking=False):
            time.sleep(9)  # longer than the limit
            for file in out.glob("_agent-*"):
                os.kill(int(file.read_text()), signal.SIGCONT)
            (out / "_again0").touch()
        return real(reader)

    monkeypatch.setattr(event_files.EventReader, "read", read)

    def stall() -> None:
        soon(lambda: len(living(out)) == 2)
        for file in out.glob("_agent-*"):
            os.kill(int(file.read_text()), signal.SIGSTOP)
        stalled.set()
        soon(lambda: (out / "_again0").exists())
        time.sleep(1)
        (out / "_logs" / "cancel.json").write_text("{}")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(stall)
        with pytest.raises(ClozeError, match="stopped at step 7, checkpoint saved"):
            run(out, "slow", nodes=2)
    soon(lambda: not left(out))


def test_a_host_that_is_silent_for_too_long_is_stopped_with_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ranks save, and the error says so."""
    monkeypatch.setattr(agent_launcher, "LOST_SECONDS", 4.0)
    monkeypatch.setattr(agent_launcher, "STOP_SECONDS", 2.0)
    out = tmp_path / "a"

    def pause() -> None:
        soon(lambda: len(living(out)) == 2)
        os.kill(int((out / "_agent-1").read_text()), signal.SIGSTOP)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(pause)
        with pytest.raises(
            ClozeError, match="host b is lost: .*stopped at step 7, checkpoint saved"
        ):
            run(out, "slow", nodes=2, grace_seconds=5)
    soon(lambda: not left(out))


def launch_of(tmp_path: Path) -> LaunchSpec:
    """A launch whose job and inputs no agent reads before `go.json`."""

    spec = LaunchSpec(
        artifact=str(tmp_path / "out"), directory=str(tmp_path / "out" / "_logs" / "l"),
        job=str(tmp_path / "job.json"), worker="tests.flows.worker", hosts=("a",), counts=(1,),
        program=identity.identity(), inputs={}, grace_seconds=1.0, grace_grows=False, device="cpu",
        gpu_ids=(), slots=False, token="", addresses=("127.0.0.1",),
    )  # fmt: skip
    spec.write()
    return spec


def test_an_agent_without_a_coordinator_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "HEAD_SECONDS", 1.0)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        assert Agent(launch_of(tmp_path), 0, leash=False).run() != 0
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])
    sent = (tmp_path / "out" / "_logs" / "l" / "node0.jsonl").read_text()
    assert "no sign of life of the coordinator" in sent


def test_an_agent_waits_as_long_as_its_coordinator_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pods of other hosts may wait in a queue for hours."""
    monkeypatch.setattr(agent, "HEAD_SECONDS", 1.0)
    monkeypatch.setattr(agent, "POLL_SECONDS", 0.1)
    launch = launch_of(tmp_path)

    def live() -> None:
        for count in range(15):
            event_files.write_json(launch.file(protocol.HEAD), {"beat": count})
            time.sleep(0.2)
        event_files.write_json(launch.file(GO), {"port": 1, "hosts": ["a"]})

    with ThreadPoolExecutor(1) as pool:
        pool.submit(live)
        assert Agent(launch, 0, leash=False)._wait_to_go() == {"port": 1, "hosts": ["a"]}


def test_a_coordinator_shows_that_it_lives_until_all_are_ready(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_launcher, "HEAD_INTERVAL", 0.1)
    (cluster / "unschedulable").touch()
    claim = f"claim=training:{tmp_path}"
    ranks = submit(tmp_path / "out", "kubernetes", kubernetes_options=(IMAGE, claim))
    (head,) = (tmp_path / "out").rglob(protocol.HEAD)
    seen = set()
    for _ in range(5):
        ranks.events(0.2)
        seen.add(head.read_text())
    ranks.close()
    assert len(seen) > 1


def test_a_time_limit_is_the_clusters_too(cluster: Path, tmp_path: Path) -> None:
    (cluster / "unschedulable").touch()
    options = (IMAGE, f"claim=training:{tmp_path}")
    ranks = submit(tmp_path / "out", "kubernetes", timeout_minutes=30, kubernetes_options=options)
    ranks.close()
    (manifest,) = (tmp_path / "out").rglob("*.yaml")
    assert yaml.safe_load(manifest.read_text())["spec"]["activeDeadlineSeconds"] > 1800


def test_a_train_job_that_nobody_follows_saves_before_the_next_one_starts(
    cluster: Path, tmp_path: Path
) -> None:
    """Its coordinator was evicted; the run is continued elsewhere."""
    out = tmp_path / "out"
    options = (IMAGE, f"claim=training:{tmp_path}", f"python={sys.executable}")
    code = (
        "from pathlib import Path; from tests.flows.launch import test_storage_stalls as here;"
        f"here.run(Path({str(out)!r}), 'twice', 'kubernetes', nodes=2, device='cpu',"
        f" kubernetes_options={options!r})"
    )
    first = subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY)
    soon(lambda: len(list(out.glob("_pid-?"))) == 2)
    first.kill()
    first.wait()
    assert not (out / "_again").exists()
    result = run(out, "twice", "kubernetes", nodes=2, device="cpu", kubernetes_options=options)
    assert (out / "_again").exists()  # the first ranks have saved
    assert result.manifest.counters == {"seen": 5}


@pytest.mark.parametrize("returns", [True, False], ids=["returns", "stays away"])
def test_a_rank_that_waits_for_storage_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returns: bool
) -> None:
    """Its limit counts anew when the storage is back; one that stays away is a hang at last."""
    monkeypatch.setattr(hang_detection, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(hang_detection, "DUMP_SECONDS", 0.1)
    monkeypatch.setattr(hang_detection, "STALL_SECONDS", 3600.0 if returns else 0.3)
    back, began = threading.Event(), time.monotonic()
    monkeypatch.setattr(HangDetector, "_try_to_write", lambda _: back.wait(60))
    (tmp_path / "rank0.log").touch()
    reader = HeartbeatReader()
    HeartbeatWriter(reader.number).begin_step(3, 0.2, 0.2)
    with subprocess.Popen(["sleep", "60"]) as rank:
        detector = HangDetector([rank.pid], [reader], [tmp_path / "rank0.log"], elsewhere=False)
        found = None
        while found is None:
            time.sleep(0.02)
            found = detector.check()
            if returns and time.monotonic() > began + 1:
                back.set()
        rank.kill()
    back.set()
    assert time.monotonic() - began > (1.2 if returns else 0.4)
    assert found.step == 3
