"""How long a training is, in steps, tokens or seconds: what ends when, and that a resumed one repeats what was."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from model.train.distributed import World
from model.train.pace import PACE, WHOLE, StepPace, TimePace, TokenPace
from model.train.schedules import Schedule
from pipeline.core.errors import UsageError
from tests import warm
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import config, here, job, worker


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset")


def timed(path: Path, clock: list[float], seconds: float = 100.0, size: int = 1, first: bool = True) -> TimePace:
    ticks = iter(clock)
    world = World(0 if first else 1, size, torch.device("cpu"))
    return TimePace(seconds=seconds, begun=0, path=str(path), world=world, closing=lambda step: 10.0, clock=lambda: next(ticks))


def test_steps_are_those_of_the_phase_and_the_course_those_of_the_schedule() -> None:
    pace = StepPace(steps=30, first=0, span=40)
    assert [pace.moment(step, 0, 0, (0, 0)).last for step in (28, 29)] == [False, True]
    found = pace.moment(10, 0, 0, (0, 0))
    assert (found.done, found.size, found.whole) == (10, 1, 40)
    assert StepPace(steps=30, first=20, span=10).moment(20, 0, 0, (0, 0)).done == 0


def test_tokens_end_with_the_step_that_reaches_them() -> None:
    pace = TokenPace(first=1000, tokens=500)
    assert not pace.moment(7, 1400, 99, (0, 0)).last
    assert pace.moment(7, 1400, 100, (0, 0)).last
    assert (pace.over(8, 1499), pace.over(8, 1500)) == (False, True)
    assert pace.moment(7, 1250, 50, (0, 0)).done / pace.whole == 0.5


def test_a_moment_ends_each_part_of_the_course_once() -> None:
    pace = TokenPace(first=0, tokens=1000)
    for parts in (1, 3, 10):
        sizes = itertools.accumulate([37] * 27, initial=0)
        assert sum(pace.moment(0, done, 37, (0, 0)).ends(parts) for done in sizes) == parts


def test_the_last_step_is_the_last_that_ends_in_time(tmp_path: Path) -> None:
    """Ten seconds are kept for what comes after the last step. Starting and the first step, which compiles, are no part of the course: else
    a short training would have no warm-up.
    """
    clock = [5.0, 35.0, *(40.0 + 5.0 * step for step in range(20))]
    pace = timed(tmp_path, clock)
    moments = []
    for step in range(20):
        moments.append(pace.moment(step, 0, 0, pace.tell(step)))
        if moments[-1].last:
            break
    assert len(moments) == 12
    assert clock[len(moments)] == 90.0  # when it ends
    done = [moment.done / WHOLE for moment in moments]
    assert done == pytest.approx([0, 0.001, *((at - 35) / (90 - 35) for at in clock[2 : len(moments)])], abs=1e-8)
    assert moments[-1].share == pytest.approx(1.0)
    assert pace.over(12, 0)
    assert not pace.over(11, 0)


def test_what_was_told_is_told_again_and_goes_on_with_what_was_left(tmp_path: Path) -> None:
    first = timed(tmp_path, [5.0, 35.0, 40.0, 45.0, 50.0])
    before = [first.tell(step) for step in range(5)]
    again = timed(tmp_path, [200.0, 201.0, 202.0, 203.0, 204.0, 205.0, 206.0])  # another session, on a faster machine
    assert [again.tell(step) for step in range(2, 5)] == before[2:]  # from a checkpoint after two steps
    begins, ends = again.tell(5)
    assert begins == before[-1][1]
    assert ends - begins == pytest.approx(WHOLE / (90 - 35), rel=1e-6)
    assert again.tell(6)[0] == pytest.approx(ends, abs=2)


def test_a_budget_that_starting_takes_up_is_refused_or_has_one_step(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"budget \(100s\) was over .*: starting took 120.0 s; use 360s or more"):
        timed(tmp_path / "over", [120.0]).check()
    pace = timed(tmp_path / "nearly", [95.0, 95.0, 96.0])
    assert pace.check() == 0
    only = pace.moment(0, 0, 0, pace.tell(0))
    assert (only.done, only.last) == (0, True)
    assert Schedule(warmup=0.1 * WHOLE).factor(only.done, WHOLE, only.size) == 1.0  # and is not of rate 0
    again = timed(tmp_path / "nearly", [300.0])  # killed before its checkpoint
    assert again.check() == 0


def test_paces_of_an_earlier_version_are_repeated_as_they_were(tmp_path: Path) -> None:
    """Their shares count from the process' beginning, and so does what is left."""
    (tmp_path / PACE).write_text(
        "".join(json.dumps({"step": n + 1, "begins": 9 * n, "ends": 9 * n + 9}) + "\n" for n in range(3))
    )
    pace = timed(tmp_path, [7.0, 8.0, 9.0, 10.0, 11.0])
    assert [pace.tell(step) for step in range(3)] == [(0, 9), (9, 18), (18, 27)]
    assert pace.tell(3)[0] == 27
    assert pace.tell(4)[0] == pytest.approx(27 + WHOLE / 90, abs=2)


def test_several_ranks_are_told_of_a_step_before_the_one_before_it_runs(tmp_path: Path) -> None:
    pace = timed(tmp_path, [4.0, 5.0, *(30.0 + 5.0 * step for step in range(40))], size=2)  # the first step compiles
    told = [pace.tell(step) for step in range(10)]
    assert [begins for begins, _ in told[:3]] == [0, WHOLE // 1000, 2 * WHOLE // 1000]
    assert told[3][0] / WHOLE == pytest.approx((35.0 + 5.0 - 30.0) / (90 - 30))
    assert told[9][0] / WHOLE == pytest.approx((65.0 + 5.0 - 30.0) / (90 - 30))
    assert len(lines(tmp_path / PACE)) == 10
    assert timed(tmp_path / "other", [], size=2, first=False).over(3, 0) is False


def test_tokens_are_counted(dataset: str, tmp_path: Path) -> None:
    run = here(config(steps=None, tokens=3000, global_batch=8, heldout_rows=16), dataset, tmp_path / "run")
    assert run.outcome is not None
    each = lines(tmp_path / "run" / "metrics.jsonl")
    assert run.outcome.tokens >= 3000 > each[-2]["tokens"]
    assert each[-1]["learning_rate"] < 0.15 * max(line["learning_rate"] for line in each)
    assert run.outcome.summary["heldout_rows"] == 16


@pytest.mark.slow
def test_a_budget_is_kept(dataset: str, tmp_path: Path) -> None:
    settings = config(steps=None, budget="12s", schedule="wsd", global_batch=8, heldout_rows=16)
    (process,), log = worker(job(settings, dataset, tmp_path / "run", threads=1))
    began = time.monotonic()
    assert process.wait(120) == 0, log.read_text()
    took = time.monotonic() - began
    found = lines(tmp_path / "run" / "metrics.jsonl")
    told = lines(tmp_path / "run" / PACE)
    assert took < 24  # the aim is 12, of a machine that does nothing else
    assert took > 8
    assert len(told) == found[-1]["step"] > 10
    assert found[-1]["learning_rate"] < 0.2 * max(line["learning_rate"] for line in found)
    assert found[0]["learning_rate"] < 0.1 * max(line["learning_rate"] for line in found)  # starting is no warm-up
    assert 1 <= sum("heldout_loss" in line for line in found) <= 11
    assert "heldout_loss" in found[-1]


@pytest.mark.slow
def test_a_budget_that_was_killed_repeats_its_steps(dataset: str, tmp_path: Path) -> None:
    """On two ranks: what the lost steps after the checkpoint had made is made again, to the last digit, and then it goes on."""
    settings = config(steps=None, budget="12s", global_batch=4, heldout_rows=8, log_every=1)
    work = job(settings, dataset, tmp_path / "run", checkpoint_every=10)
    told, metrics = tmp_path / "run" / PACE, tmp_path / "run" / "metrics.jsonl"
    processes, log = worker(work, 2)
    while not (tmp_path / "run" / "checkpoints" / "step-00000010").exists() or len(lines(metrics)) < 15:
        assert processes[0].poll() is None, log.read_text()
        time.sleep(0.05)
    for process in processes:
        warm.kill(process)
    before, paced = lines(metrics), lines(told)
    processes, log = worker(work, 2)
    assert [process.wait(120) for process in processes] == [0, 0], log.read_text()
    after = lines(metrics)
    assert "going on from" in log.read_text()
    assert len(after) > len(before)
    assert [_exact(line) for line in after[: len(before)]] == [_exact(line) for line in before]
    assert lines(told)[: len(paced)] == paced


def _exact(line: dict[str, Any]) -> dict[str, Any]:
    return {name: line[name] for name in ("step", "loss", "learning_rate", "grad_norm", "tokens")}
