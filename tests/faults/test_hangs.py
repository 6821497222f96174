"""A rank that hangs is found, and named instead of those that wait for it; a slow one is named; one that dies is told by its signal."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from flows.launchers import head
from model import checkpoint
from model.train import waits
from model.train.distributed import World
from model.train.stage import STAGE
from model.train.watchdog import Watchdog
from pipeline.core.errors import ClozeError
from pipeline.core.execution import Execution
from pipeline.core.pulse import Phase, Pulse, Watched
from pipeline.core.reporting import Reporter
from pipeline.core.stage import Build
from tests.conftest import REPOSITORY
from tests.faults.worker import FAULT
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import config, here

pytestmark = pytest.mark.timeout(280)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset")


class Listener(Reporter):
    """Does something to the ranks as soon as they have trained for some steps."""

    def __init__(self, act: Callable[[Mapping[int, int]], None] = lambda ids: None) -> None:
        self.act, self.ids, self.said = act, {}, []  # type: ignore[var-annotated]
        self.acted = False

    def processes(self, ids: Mapping[int, int]) -> None:
        self.ids = dict(ids) or self.ids

    def metrics(self, values: Mapping[str, Any]) -> None:
        if values["step"] >= 8 and not self.acted:
            self.acted = True
            threading.Thread(target=self.act, args=(self.ids,)).start()

    def progress(self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]) -> None:
        self.said += [str(figures["warning"])] if "warning" in figures else []


def train(dataset: str, out: Path, monkeypatch: pytest.MonkeyPatch, listener: Listener, fault: str = "", **values: Any) -> None:
    """Two ranks, under `flows.launchers.head`, with that fault."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv(FAULT, fault)
    stage = dataclasses.replace(STAGE, worker="tests.faults")
    values, how = (
        {name: value for name, value in values.items() if (name in Execution.model_fields) is wanted}
        for wanted in (False, True)
    )
    execution = Execution(processes=2, threads=1, device="cpu", hang_seconds=8.0, **how)
    build = Build(
        path=str(out), inputs={"dataset": dataset}, execution=execution, fingerprint="f" * 64, build_id="b", report=listener
    )
    settings = config(**{"steps": 100_000, "evaluate_every": 100_000, "log_every": 1, **values})
    head.in_process(stage, "model.train.stage:STAGE")(settings, build)


def none_left(listener: Listener) -> bool:
    return bool(listener.ids) and not any(psutil.pid_exists(pid) for pid in listener.ids.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "where"),
    [("hang 1 12", "computing"), pytest.param("no-data 0 12", "waiting for its batch", marks=pytest.mark.soak)],
)
def test_the_rank_that_hangs_is_named(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, where: str
) -> None:
    listener = Listener()
    with pytest.raises(
        ClozeError, match=rf"rank {fault.split()[1]} hangs in .* it has been {where} in step 1[12] for"
    ) as caught:
        train(dataset, tmp_path / "run", monkeypatch, listener, fault)
    assert caught.value.step in (11, 12)  # the model is run once before the first step
    assert caught.value.died
    for rank in (0, 1):
        assert "(most recent call first)" in (tmp_path / "run" / "_logs" / f"rank{rank}.log").read_text()
    assert none_left(listener)


@pytest.mark.soak
def test_the_rank_that_hangs_is_named_under_torchrun(dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    with pytest.raises(ClozeError, match=r"rank 1 on host \S+ hangs in .* it has been computing in step 1[12] for") as caught:
        train(dataset, out, monkeypatch, Listener(), "hang 1 12", launcher="torchrun")
    assert caught.value.died
    for rank in (0, 1):
        assert "(most recent call first)" in (out / "_logs" / f"rank{rank}.log").read_text()
    assert not [process for process in psutil.process_iter(["cmdline"]) if str(out) in " ".join(process.info["cmdline"] or ())]


@pytest.mark.slow
def test_a_rank_that_was_stopped_is_named(dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener(lambda ids: os.kill(ids[0], signal.SIGSTOP))
    with pytest.raises(ClozeError, match=r"rank 0 was stopped \(SIGSTOP\) and cannot tell where it is"):
        train(dataset, tmp_path / "run", monkeypatch, listener)
    assert "(most recent call first)" in (tmp_path / "run" / "_logs" / "rank1.log").read_text()
    assert none_left(listener)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("number", "told"), [(signal.SIGSEGV, r"crashed \(SIGSEGV: "), (signal.SIGKILL, r"was killed \(SIGKILL\)")]
)
def test_a_rank_that_dies_is_told_by_its_signal(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, told: str
) -> None:
    listener = Listener(lambda ids: os.kill(ids[1], number))
    with pytest.raises(ClozeError, match=rf"rank 1 {told}"):
        train(dataset, tmp_path / "run", monkeypatch, listener)
    assert none_left(listener)


@pytest.mark.soak
def test_a_slow_rank_is_named(dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener()
    train(dataset, tmp_path / "run", monkeypatch, listener, "slow 1 0.2", steps=70)
    (sentence,) = [said for said in listener.said if "makes the others wait" in said]
    assert sentence.startswith("rank 1 on ")
    last = lines(tmp_path / "run" / "metrics.jsonl")[-1]
    assert 0.2 < float(str(last["rank_wait"])) < 1


def test_a_pulse_is_seen_from_outside() -> None:
    watched = Watched()
    pulse = Pulse(watched.number)
    pulse.step(7, 60.0)
    pulse.enter(Phase.COMPUTING)
    assert (watched.look().step, watched.look().phase, watched.look().limit) == (7, Phase.COMPUTING, 60.0)
    with pulse.within(Phase.ASIDE), pulse.within(Phase.EXCHANGE):
        assert (watched.look().phase, watched.look().limit) == (Phase.EXCHANGE, 0.0)  # as long as it likes
    assert (watched.look().phase, watched.look().limit, pulse.waited) == (Phase.COMPUTING, 60.0, 0.0)
    with pulse.within(Phase.EXCHANGE):
        time.sleep(0.01)
    assert pulse.waited >= 0.01
    assert 0 <= time.monotonic() - watched.look().since < 60
    watched.close()


def looked_at(monkeypatch: pytest.MonkeyPatch, hosts: list[str]) -> waits.Waits:
    """A first rank among some on these hosts."""
    monkeypatch.setattr(waits, "_hosts", lambda world: hosts)
    monkeypatch.setattr(waits, "SECONDS", 0.0)
    return waits.Waits(World(0, len(hosts), torch.device("cpu")))


def told(found: waits.Waits, own: Callable[[int], list[float]]) -> str | None:
    """What is said after as many steps as it takes."""
    said = [found.heard([int(waits.MICRO * seconds) for seconds in own(step)]) for step in range(waits.STEPS)]
    assert said[:-1] == [None] * (waits.STEPS - 1)
    return said[-1]


def test_whose_fault_it_is_that_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    one = looked_at(monkeypatch, ["a", "a", "b", "b"])
    assert told(one, lambda step: [1.0, 1.0, 2.0, 1.0]) == (
        "rank 2 on b makes the others wait 50 % of the time: it computes for 2 s a step, they for 1 s"
    )
    assert told(one, lambda step: [1.0, 1.0, 2.0, 1.0]) is None  # it was told
    turns = looked_at(monkeypatch, ["a", "a", "b", "b"])
    assert str(told(turns, lambda step: [1.0, 1.0, 2.0 + step % 2, 2.0 + (1 - step % 2)])).startswith("host b makes the others")
    even = looked_at(monkeypatch, ["a", "b", "c", "d"])
    assert told(even, lambda step: [1.0 + 2.0 * (rank == step % 4) for rank in range(4)]) is None
    assert told(looked_at(monkeypatch, ["a", "b"]), lambda step: [1.0, 1.1]) is None


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_rank_that_dies_twice_is_done_without(dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `min_processes`: once again with two, then with one, from the newest checkpoint; the same batches in the same order."""
    counts: list[int] = []

    class Twice(Listener):
        def processes(self, ids: Mapping[int, int]) -> None:
            super().processes(ids)
            counts.extend([len(ids)] if ids else [])
            self.acted = len(counts) > 2

    listener = Twice(lambda ids: os.kill(ids[1], signal.SIGKILL))
    settings = {"steps": 24, "evaluate_every": 24}
    train(dataset, tmp_path / "run", monkeypatch, listener, min_processes=1, checkpoint_every=4, micro_batch=4, **settings)
    assert counts == [2, 2, 1]
    assert [line["step"] for line in lines(tmp_path / "run" / "metrics.jsonl")] == list(range(1, 25))
    warned = [said for said in listener.said if "started again" in said]
    assert len(warned) == 2
    assert "with 1 processes" in warned[1]
    alone = here(config(**settings, log_every=1), dataset, tmp_path / "alone", micro_batch=4)
    ours, theirs = (
        checkpoint.load(str(newest)).state for newest in (max((tmp_path / "run").glob("checkpoints/step-*")), alone.checkpoint)
    )
    assert all(torch.allclose(tensor, theirs[name], rtol=0, atol=1e-4) for name, tensor in ours.items())


def test_what_comes_after_the_last_step_may_take_any_time() -> None:
    watched = Watched()
    pulse = Pulse(watched.number)
    watchdog = Watchdog(pulse, 60.0, compiled=False)
    limits = []
    for step in range(1, 8):
        watchdog.begin(step)
        limits.append(watched.look().limit)
    assert limits == [0, 0, 0, 0, 60, 60, 60]  # the first steps allocate
    watchdog.end()
    assert watched.look().limit == 0
    watched.close()
