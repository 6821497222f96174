"""A rank that hangs is found, and named instead of those that wait for it; a slow one is named; one
that dies is told by its signal.
"""

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

from cloze.core.errors import ClozeError
from cloze.core.processes import HeartbeatReader, HeartbeatWriter, RankPhase
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext, Reporter
from cloze.flows.launch import coordinator
from cloze.model import checkpoint
from cloze.model.train.distributed import World
from cloze.model.train.monitor.watchdog import StepTimer
from cloze.model.train.stage import STAGE
from tests.checkout import import_path
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

    def progress(
        self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]
    ) -> None:
        self.said += [str(figures["warning"])] if "warning" in figures else []


def train(
    dataset: str,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    listener: Listener,
    fault: str = "",
    **values: Any,
) -> None:
    """Two ranks, under `cloze.flows.launch.coordinator`, with that fault."""
    # not an installed Cloze
    monkeypatch.setenv("PYTHONPATH", import_path(REPOSITORY))
    monkeypatch.setenv(FAULT, fault)
    stage = dataclasses.replace(STAGE, worker="tests.faults")
    values, how = (
        {
            name: value
            for name, value in values.items()
            if (name in Execution.model_fields) is wanted
        }
        for wanted in (False, True)
    )
    execution = Execution(
        **{"processes": 2, "threads": 1, "device": "cpu", "hang_seconds": 8.0, **how}
    )
    build = BuildContext(
        path=str(out),
        inputs={"dataset": dataset},
        execution=execution,
        fingerprint="f" * 64,
        build_id="b",
        report=listener,
    )
    settings = config(**{"steps": 100_000, "evaluate_every": 100_000, "log_every": 1, **values})
    coordinator.run_in_worker_processes(stage, "cloze.model.train.stage:STAGE")(settings, build)


def none_left(listener: Listener) -> bool:
    return bool(listener.ids) and not any(psutil.pid_exists(pid) for pid in listener.ids.values())


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    ("fault", "where"),
    [
        ("hang 1 12", "computing"),
        pytest.param("no-data 0 12", "waiting for its batch", marks=pytest.mark.soak),
    ],
)
def test_the_rank_that_hangs_is_named(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, where: str
) -> None:
    listener = Listener()
    with pytest.raises(
        ClozeError,
        match=rf"rank {fault.split()[1]} hangs in .* it has been {where} in step 1[12] for",
    ) as caught:
        train(dataset, tmp_path / "run", monkeypatch, listener, fault)
    assert caught.value.step in (11, 12)  # the model is run once before the first step
    assert caught.value.process_died
    for rank in (0, 1):
        assert (
            "(most recent call first)"
            in (tmp_path / "run" / "_logs" / f"rank{rank}.log").read_text()
        )
    assert none_left(listener)


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("never-10 0 start", "it has been starting in step 0 for"),
        ("never-10 0 evaluate", "it has been measuring or saving in step 4 for"),
        ("never-10 0 save", "it has been measuring or saving in step 6 for"),
    ],
)
def test_no_place_of_a_training_is_without_a_limit(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, told: str
) -> None:
    """Before its first step, inside an evaluation, or inside a save."""
    settings = {"steps": 12, "evaluate_every": 4, "checkpoint_every": 3, "hang_seconds": 1.0}
    listener = Listener()
    with pytest.raises(ClozeError, match=rf"pretrain hangs in .*{told} \d+ s, which may") as caught:
        train(dataset, tmp_path / "run", monkeypatch, listener, fault, processes=1, **settings)
    assert caught.value.process_died
    assert ("to continue from" in str(caught.value)) == ("start" not in fault)
    stacks = (tmp_path / "run" / "_logs" / "rank0.log").read_text()
    assert "(most recent call first)" in stacks
    assert none_left(listener)


@pytest.mark.soak
@pytest.mark.parametrize("ranks", [(0,), (0, 1)], ids=["one", "all"])
def test_ranks_that_were_stopped_go_on(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: tuple[int, ...]
) -> None:
    """Longer than a step may take, alone and all, while their parent is awake."""
    listener = Listener(lambda ids: [os.kill(ids[rank], signal.SIGSTOP) for rank in ranks] and None)
    settings = {"steps": 20, "evaluate_every": 20}
    train(dataset, tmp_path / "run", monkeypatch, listener, **settings)
    assert [line["step"] for line in lines(tmp_path / "run" / "metrics.jsonl")] == [*range(1, 21)]
    assert any(f"rank {ranks[0]} was stopped (SIGSTOP)" in told for told in listener.said)
    assert none_left(listener)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("number", "told"),
    [(signal.SIGSEGV, r"crashed \(SIGSEGV: "), (signal.SIGKILL, r"was killed \(SIGKILL\)")],
)
def test_a_rank_that_dies_is_told_by_its_signal(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, told: str
) -> None:
    listener = Listener(lambda ids: os.kill(ids[1], number))
    with pytest.raises(ClozeError, match=rf"rank 1 {told}"):
        train(dataset, tmp_path / "run", monkeypatch, listener)
    assert none_left(listener)


def test_a_pulse_is_seen_from_outside() -> None:
    begun = time.monotonic()
    watched = HeartbeatReader()
    pulse = HeartbeatWriter(watched.number)
    pulse.begin_step(7, 60.0, 3600.0)
    pulse.set_phase(RankPhase.COMPUTING)
    assert (watched.read().step, watched.read().phase, watched.read().limit) == (
        7,
        RankPhase.COMPUTING,
        60.0,
    )
    with pulse.phase(RankPhase.EVALUATING_OR_SAVING), pulse.phase(RankPhase.EXCHANGE):
        assert (watched.read().phase, watched.read().limit) == (
            RankPhase.EXCHANGE,
            3600.0,
        )  # as a part of the evaluation
    assert (watched.read().phase, watched.read().limit) == (RankPhase.COMPUTING, 60.0)
    assert begun <= watched.read().since <= time.monotonic()
    watched.close()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_rank_that_dies_twice_is_done_without(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `min_processes`: once again with two, then with one, from the newest checkpoint; the
    same batches in the same order.
    """
    counts: list[int] = []

    class Twice(Listener):
        def processes(self, ids: Mapping[int, int]) -> None:
            super().processes(ids)
            counts.extend([len(ids)] if ids else [])
            self.acted = len(counts) > 2

    listener = Twice(lambda ids: os.kill(ids[1], signal.SIGKILL))
    settings = {"steps": 24, "evaluate_every": 24}
    train(
        dataset,
        tmp_path / "run",
        monkeypatch,
        listener,
        min_processes=1,
        checkpoint_every=4,
        micro_batch=4,
        **settings,
    )
    assert counts == [2, 2, 1]
    assert [line["step"] for line in lines(tmp_path / "run" / "metrics.jsonl")] == list(
        range(1, 25)
    )
    warned = [said for said in listener.said if "started again" in said]
    assert len(warned) == 2
    assert "with 1 processes" in warned[1]
    alone = here(config(**settings, log_every=1), dataset, tmp_path / "alone", micro_batch=4)
    ours, theirs = (
        checkpoint.load(str(newest)).state
        for newest in (max((tmp_path / "run").glob("checkpoints/step-*")), alone.checkpoint)
    )
    assert all(
        torch.allclose(tensor, theirs[name], rtol=0, atol=1e-4) for name, tensor in ours.items()
    )


def test_what_comes_after_the_last_step_may_take_an_hour() -> None:
    watched = HeartbeatReader()
    pulse = HeartbeatWriter(watched.number)
    world = World(0, 1, torch.device("cpu"), pulse=pulse)
    timer = StepTimer(world, 60.0, compiled=False)
    limits = []
    for step in range(1, 8):
        timer.begin(step)
        limits.append(watched.read().limit)
    assert limits == [3600, 3600, 3600, 3600, 60, 60, 60]  # the first steps allocate
    timer.end()
    assert watched.read().limit == 3600
    watched.close()
