"""An agent holds the slots of its host's GPUs: no two launches, and no run of the host's own, share
one unasked.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloze.core.errors import ClozeError
from cloze.core.stages.stage import Reporter
from cloze.core.stages.worker import Job
from cloze.flows.launch import agent
from cloze.flows.launch.agent import Agent
from cloze.flows.launch.protocol import LaunchSpec
from cloze.flows.machine import slots
from cloze.flows.machine.slots import MachineResources, ResourceRequest
from tests.flows.launch.test_by_agents import _here, run  # noqa: F401

TWO = MachineResources(cores=("0", "1", "2", "3"), gpus=("0", "1"))


@pytest.fixture(autouse=True)
def _two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOZE_SLOTS_DIR", str(tmp_path / "slots"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")


def taken(gpus: int) -> Any:
    """Slots that another run of this host holds."""
    return slots.acquire(
        ResourceRequest(gpus=gpus), TWO, "W/other", "pretrain", lambda: False, lambda: None
    )


def agent_of(path: Path, count: int = 1, **changes: Any) -> Agent:
    """That of a launch of one host with so many ranks."""
    job = Job(
        stage="toy",
        reference="tests.flows.toy:STAGE",
        config={},
        path=str(path),
        inputs={},
        execution={},
        fingerprint="f",
    )
    path.mkdir()
    job.write(str(path / "job.json"))
    launch = LaunchSpec(
        artifact=str(path), directory=str(path), job=str(path / "job.json"),
        worker="tests.flows.worker", hosts=("a",), counts=(count,),
        program={}, inputs={}, grace_seconds=0.0, grace_grows=False,
    )  # fmt: skip
    return Agent(dataclasses.replace(launch, **changes), 0, leash=False)


def test_it_takes_what_is_free_and_says_who_has_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "BUSY_SECONDS", 0.5)
    with taken(1):
        first = agent_of(tmp_path / "first")
        first.acquire_slots()
        assert first.launch.gpu_ids == ("1",)
        assert {(one.slot, one.run, one.node) for one in slots.holders()} >= {
            ("gpu-1", str(tmp_path / "first"), "toy")
        }
        with pytest.raises(ClozeError) as caught:
            agent_of(tmp_path / "second").acquire_slots()
        assert (
            caught.value.exit_code == ClozeError.exit_code
        )  # it may pass: bad usage is never tried again
        held = (
            f"GPU 0 is held by W/other (process {os.getpid()}), GPU 1 is held by "
            f"{tmp_path / 'first'} (process {os.getpid()})"
        )
        assert f"host a has too few free GPUs for 1 processes: {held}" in str(caught.value)


@pytest.mark.parametrize("changes", [{"slots": False}, {"device": "cpu"}])
def test_what_is_shared_on_purpose_or_needs_none_takes_none(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    with taken(2):
        one = agent_of(tmp_path / "a", **changes)
        one.acquire_slots()
        assert one.launch.gpu_ids == ()


class Told(Reporter):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def progress(self, done: float, total: float | None, unit: str, figures: Any) -> None:
        self.notes += [figures["note"]] if "note" in figures else []


def test_a_launch_waits_for_a_run_of_its_host_and_says_so(tmp_path: Path) -> None:
    reported, over = Told(), threading.Event()
    with taken(2):

        def launched() -> None:
            run(tmp_path / "out", reported, {"nodes": 1})
            over.set()

        launch = threading.Thread(target=launched)
        launch.start()
        deadline = time.monotonic() + 200
        while not reported.notes and time.monotonic() < deadline:
            time.sleep(0.1)
        assert reported.notes[0].startswith("host a waits for GPUs: GPU 0, 1 are held by W/other")
        assert not (tmp_path / "out" / "_pid-0").exists()
    launch.join(timeout=200)
    assert over.is_set()
    assert slots.holders() == []


def test_a_scheduler_that_gives_gpus_out_is_asked_alone() -> None:
    from cloze.flows.launch.slurm.job import SrunLauncher
    from cloze.flows.launch.ssh import SshLauncher
    from cloze.labs.kubernetes.launcher import KubernetesLauncher

    assert (
        SrunLauncher.allocates_gpus,
        KubernetesLauncher.allocates_gpus,
        SshLauncher.allocates_gpus,
    ) == (True, True, False)


@pytest.mark.parametrize("grace", [0.0, 45.0])
def test_who_trains_there_may_take_its_grace_to_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grace: float
) -> None:
    """A launch waits for GPUs as long as the one before it has leave to save, and a minute."""
    now = 1000.0
    gave_up: list[float] = []

    def acquire(*arguments: Any) -> Any:
        nonlocal now
        stops = arguments[4]
        while not stops():
            now += 1.0
        gave_up.append(now)
        raise KeyboardInterrupt

    monkeypatch.setattr(agent, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(slots, "acquire", acquire)
    with pytest.raises(ClozeError, match="too few free GPUs"):
        agent_of(tmp_path / "a", grace_seconds=grace).acquire_slots()
    assert gave_up == [1000.0 + agent.BUSY_SECONDS + grace + 1.0]
