"""How long a training is, in steps, tokens or seconds: what ends when, and that a resumed one
repeats what was.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from cloze.core.artifacts.checkpoints import COMPLETE
from cloze.core.errors import UsageError
from cloze.model.train.engines.torch import TorchEngine
from cloze.model.train.setup import FINISHING
from cloze.model.train.spec import schedules
from cloze.model.train.spec.schedules import (
    BUDGET_UNITS,
    Schedule,
    StepDuration,
    TimeBudget,
    TokenDuration,
)
from tests import warm_forks
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import (
    STANDS,
    config,
    here,
    job,
    kill_standing,
    stand_still_when,
    standing,
    worker,
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset")


def timed(
    seconds: float, step_seconds: float, start: float = 5.0, first: float = 30.0, size: int = 1
) -> tuple[TimeBudget, int]:
    """A pace whose training has run to its end, and the number of its last step: the first step
    compiles, ten seconds close it.
    """
    now = [start]
    pace = TimeBudget(
        seconds=seconds, cold=2 if size > 1 else 1, closing=lambda step: 10.0, clock=lambda: now[0]
    )
    step, last = 0, 0
    while True:
        last = pace.fix(step)
        ran = step - (size > 1)
        if ran >= 0:
            now[0] += first if ran == 0 else step_seconds
        step += 1
        if last and ran + 1 >= last:
            assert now[0] <= seconds
            return pace, last


def test_steps_are_those_of_the_phase_and_the_course_those_of_the_schedule() -> None:
    pace = StepDuration(steps=30, first=0, span=40)
    assert [pace.progress_at(step, 0, 0, ()).last for step in (28, 29)] == [False, True]
    found = pace.progress_at(10, 0, 0, ())
    assert (found.done, found.step_size, found.total) == (10, 1, 40)
    assert StepDuration(steps=30, first=20, span=10).progress_at(20, 0, 0, ()).done == 0


def test_tokens_end_with_the_step_that_reaches_them() -> None:
    pace = TokenDuration(first=1000, tokens=500)
    assert not pace.progress_at(7, 1400, 99, ()).last
    assert pace.progress_at(7, 1400, 100, ()).last
    assert (pace.last(8, 1499), pace.last(8, 1500)) == (None, 8)
    assert pace.progress_at(7, 1250, 50, ()).done / pace.total == 0.5


def test_a_moment_ends_each_part_of_the_course_once() -> None:
    pace = TokenDuration(first=0, tokens=1000)
    for parts in (1, 3, 10):
        sizes = itertools.accumulate([37] * 27, initial=0)
        assert sum(pace.progress_at(0, done, 37, ()).crosses(parts) for done in sizes) == parts


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("seconds", "step_seconds", "least"), [(100.0, 5.0, 8), (600.0, 0.1, 5000), (600.0, 2.0, 250)]
)
def test_a_budget_is_a_number_of_steps_that_end_in_time(
    seconds: float, step_seconds: float, least: int, size: int
) -> None:
    pace, last = timed(seconds, step_seconds, size=size)
    assert last >= least
    assert pace.fix(10_000) == last, "it is fixed once"


def test_the_course_of_a_budget_begins_when_its_steps_are_known_and_follows_them() -> None:
    """Starting and compiling are no part of the course: else a short training would have no
    warm-up.
    """
    pace = TimeBudget(seconds=100.0, cold=1, closing=lambda step: 0.0)
    schedule = Schedule(warmup=0.1 * BUDGET_UNITS)
    before = pace.progress_at(3)
    assert (before.done, before.last) == (0, False)
    assert schedule.factor(before.done, BUDGET_UNITS, before.step_size) == pytest.approx(0.01)
    budget = [4, 104]
    by_steps = Schedule(warmup=10)
    for step in range(4, 104):
        moment = pace.progress_at(step, 0, 0, budget)
        assert moment.last == (step == 103)
        expected = by_steps.factor(step - 4, 100, 1)
        assert schedule.factor(moment.done, moment.total, moment.step_size) == pytest.approx(
            expected
        )
    assert (pace.last(50, 0, []), pace.last(50, 0, budget)) == (None, 104)


def test_a_budget_that_starting_takes_up_is_refused_or_has_one_step() -> None:
    over = TimeBudget(seconds=100.0, cold=1, closing=lambda step: 10.0, clock=lambda: 120.0)
    with pytest.raises(
        UsageError, match=r"max_time \(100s\) was over .*: starting took 120.0 s; use 360s or more"
    ):
        over.check_feasible()
    nearly = TimeBudget(seconds=100.0, cold=1, closing=lambda step: 10.0, clock=lambda: 95.0)
    assert nearly.check_feasible() == 0
    assert nearly.fix(0) == 1
    only = nearly.progress_at(0, 0, 0, [0, 1])
    assert (only.done, only.last) == (0, True)
    assert (
        Schedule(warmup=0.1 * BUDGET_UNITS).factor(only.done, BUDGET_UNITS, only.step_size) == 1.0
    )  # and is not of rate 0


def test_tokens_are_counted(dataset: str, tmp_path: Path) -> None:
    run = here(
        config(steps=None, tokens=3000, global_batch=8, heldout_rows=16), dataset, tmp_path / "run"
    )
    assert run.outcome is not None
    each = lines(tmp_path / "run" / "metrics.jsonl")
    assert run.outcome.tokens >= 3000 > each[-2]["tokens"]
    assert each[-1]["learning_rate"] < 0.15 * max(line["learning_rate"] for line in each)
    assert run.outcome.summary["heldout_rows"] == 16


def test_a_budget_is_kept(dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only steps move: a tenth of a second each, after five to start."""
    now, step = [5.0], TorchEngine.step

    def slow_step(self: TorchEngine, *arguments: Any) -> Any:
        now[0] += 0.1
        return step(self, *arguments)

    monkeypatch.setattr(TorchEngine, "step", slow_step)
    monkeypatch.setattr(schedules, "process_clock", lambda: lambda: now[0])
    settings = config(steps=None, max_time="20s", schedule="wsd", global_batch=8, heldout_rows=16)
    here(settings, dataset, tmp_path / "run")
    found = lines(tmp_path / "run" / "metrics.jsonl")
    assert 20 / 2 < now[0] < 20 - FINISHING, "the rest is for the last evaluation and for saving"
    assert found[-1]["step"] == round((now[0] - 5.0) / 0.1)
    assert found[-1]["learning_rate"] < 0.2 * max(line["learning_rate"] for line in found)
    assert found[0]["learning_rate"] < 0.1 * max(
        line["learning_rate"] for line in found
    )  # starting is no warm-up
    assert 1 <= sum("heldout_loss" in line for line in found) <= 11
    assert "heldout_loss" in found[-1]
    state = json.loads(
        next((tmp_path / "run").glob("checkpoints/*/training/state.json")).read_text()
    )
    assert state["budget"][1] == state["step"] == found[-1]["step"]


def steady_clock() -> None:
    """In a rank, before it trains: each look at the clock is a tenth of a second after the last."""
    looks = itertools.count(50)
    schedules.process_clock = lambda: lambda: next(looks) / 10


def until_fixed() -> None:
    """In a rank of `steady_clock`: it stands still when a checkpoint has the number of steps."""
    steady_clock()
    number, run = itertools.count(1), Path(os.environ[STANDS]).parent / "run"
    stand_still_when(lambda: next(number) > 25 and _fixed(run))


def test_a_budget_that_was_killed_repeats_its_steps(dataset: str, tmp_path: Path) -> None:
    """On two ranks: the steps after the checkpoint are made again, to the last digit, up to the
    number that was fixed before.
    """
    settings = config(steps=None, max_time="18s", global_batch=4, heldout_rows=8, log_every=1)
    work = job(settings, dataset, tmp_path / "run", checkpoint_every=10)
    metrics = tmp_path / "run" / "metrics.jsonl"
    processes, log = worker(work, 2, **standing(f"{__name__}:until_fixed", tmp_path))
    kill_standing(processes, tmp_path)
    before, last = lines(metrics), _fixed(tmp_path / "run")
    processes, log = worker(work, 2, **{warm_forks.PREPARE: f"{__name__}:steady_clock"})
    assert [process.wait(120) for process in processes] == [0, 0], log.read_text()
    after = lines(metrics)
    assert "resuming from" in log.read_text()
    assert len(after) > len(before)
    assert [_exact(line) for line in after[: len(before)]] == [_exact(line) for line in before]
    assert after[-1]["step"] == last


def _fixed(run: Path) -> int | None:
    """The number of the last step that a complete checkpoint keeps."""
    states = [
        json.loads((path.parent / "training" / "state.json").read_text())
        for path in run.glob(f"checkpoints/step-????????/{COMPLETE}")
    ]
    return next((state["budget"][1] for state in states if state["budget"]), None)


def _exact(line: dict[str, Any]) -> dict[str, Any]:
    return {name: line[name] for name in ("step", "loss", "learning_rate", "grad_norm", "tokens")}
