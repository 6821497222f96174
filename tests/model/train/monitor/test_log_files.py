"""The files of a log, and the means of its lines: whatever a kill, a resume or a rank leaves."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core import storage
from cloze.model.train.distributed import World
from cloze.model.train.loop.rollback import SkippingSource
from cloze.model.train.loop.steps import MetricWindow
from cloze.model.train.monitor.log import JsonlLog
from tests.object_store import Store

ALONE = World(rank=0, size=1, device=torch.device("cpu"))
OTHER = replace(ALONE, rank=1, size=2)
LINES = [{"step": step, "loss": 1.0 / step} for step in (1, 2, 4, 6)]


def written(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in storage.read_text(path).splitlines()]


@pytest.fixture(params=["disk", "store"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "disk":
        return str(tmp_path / "run" / "metrics.jsonl")
    store: Store = request.getfixturevalue("store")
    return store.path("run", "metrics.jsonl")


def filled(path: str) -> JsonlLog:
    log = JsonlLog(path, ALONE)
    for line in LINES:
        log.add(line)
    return log


def test_lines_are_read_back_and_are_there_after_a_sync(path: str) -> None:
    assert JsonlLog(path, ALONE).read() == []
    assert JsonlLog(path, ALONE).last() == {}
    JsonlLog(path, ALONE).sync()  # of nothing
    assert not storage.exists(path)
    log = filled(path)
    assert (log.read(), log.last()) == (LINES, LINES[-1])
    log.sync()
    assert written(path) == LINES
    log.sync()
    log.add({"step": 7})
    log.sync()
    assert written(path) == [*LINES, {"step": 7}]
    again = JsonlLog(path, ALONE)
    again.add({"step": 8})  # what is there stays
    again.sync()
    assert [line["step"] for line in written(path)] == [1, 2, 4, 6, 7, 8]


@pytest.mark.parametrize(("step", "kept"), [(0, 0), (1, 1), (3, 2), (4, 3), (9, 4)])
def test_a_resume_keeps_the_lines_up_to_its_step(path: str, step: int, kept: int) -> None:
    filled(path).sync()
    log = JsonlLog(path, ALONE)
    assert log.truncate(step) == len(LINES) - kept
    assert written(path) == LINES[:kept]
    log.add({"step": 99})
    log.sync()
    assert written(path) == [*LINES[:kept], {"step": 99}]


@pytest.mark.parametrize("torn", ['{"step": 5, "lo', "[1]", "{}", '{"step": "x"}', "\ufffd"])
def test_damaged_lines_are_passed_over_and_go_with_the_next_resume(path: str, torn: str) -> None:
    whole = "".join(json.dumps(line) + "\n" for line in LINES)
    storage.write_bytes(path, f"{torn}\n{whole}{torn}".encode())
    log = JsonlLog(path, ALONE)
    assert (log.read(), log.last()) == (LINES, LINES[-1])
    assert log.truncate(100) == 2
    assert storage.read_text(path) == whole


def test_the_last_line_may_lack_its_end(path: str) -> None:
    storage.write_bytes(path, b'{"step": 1}\n{"step": 2}')
    log = JsonlLog(path, ALONE)
    assert log.truncate(5) == 0
    log.add({"step": 3})
    log.sync()
    assert [line["step"] for line in written(path)] == [1, 2, 3]


def test_only_the_first_rank_writes(path: str) -> None:
    filled(path).sync()
    log = JsonlLog(path, OTHER)
    log.add({"step": 7})
    log.sync()
    assert log.truncate(0) == 0
    assert written(path) == LINES
    assert log.read() == LINES


def test_a_sync_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, sizes = filled(str(tmp_path / "metrics.jsonl")), list[int]()
    monkeypatch.setattr(os, "fsync", lambda number: sizes.append(os.fstat(number).st_size))
    log.sync()
    assert sizes == [(tmp_path / "metrics.jsonl").stat().st_size]


STEPS = st.lists(
    st.tuples(*[st.floats(0, 9)] * 4, st.integers(1, 5), st.integers(1, 5), st.floats(0, 3)), max_size=5
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(STEPS, st.integers(0, 5))
def test_means_are_those_of_the_steps_whether_or_not_a_checkpoint_came_between(
    steps: list[tuple[Any, ...]], cut: int
) -> None:
    """Losses per target and shares of right answers, a mean of steps; the loss is their sum."""

    def window(part: list[tuple[Any, ...]]) -> MetricWindow:
        found = MetricWindow(("mlm", "sop"), torch.device("cpu"))
        for a, b, c, d, first, second, norm in part:
            found.add(torch.tensor([[a, b], [c, d]]), torch.tensor([first, second]), norm)
        return found

    assert window([]).means(ALONE) == {}
    whole = window(steps).means(ALONE)
    fresh = MetricWindow(("mlm", "sop"), torch.device("cpu"))
    fresh.restore(window(steps[:cut]).state(ALONE), ALONE)
    for a, b, c, d, first, second, norm in steps[cut:]:
        fresh.add(torch.tensor([[a, b], [c, d]]), torch.tensor([first, second]), norm)
    assert fresh.means(ALONE) == pytest.approx(whole, abs=2e-6)
    if not steps:
        assert whole == {}
        return
    means = {
        "mlm_loss": math.fsum(a / n for a, _, _, _, n, _, _ in steps) / len(steps),
        "sop_loss": math.fsum(b / n for _, b, _, _, _, n, _ in steps) / len(steps),
        "mlm_accuracy": math.fsum(c / n for _, _, c, _, n, _, _ in steps) / len(steps),
        "sop_accuracy": math.fsum(d / n for _, _, _, d, _, n, _ in steps) / len(steps),
        "grad_norm": math.fsum(step[-1] for step in steps) / len(steps),
    }
    means["loss"] = means["mlm_loss"] + means["sop_loss"]
    assert whole == pytest.approx(means, abs=2e-5)


def test_only_the_first_rank_takes_up_the_sums_of_all() -> None:
    state = {"steps": 2, "norm": 3.0, "sums": [[1.0], [2.0]]}
    for world, sums in ((ALONE, [[1.0], [2.0]]), (OTHER, [[0.0], [0.0]])):
        window = MetricWindow(("mlm",), torch.device("cpu"))
        window.restore(state, world)
        assert (window.steps, window.norm, window.sums.tolist()) == (2, 3.0, sums)


class Numbers:
    """A source whose batches are the numbers of their steps."""

    def step_batches(self, step: int, rank: int, world_size: int) -> Any:
        return step, rank, world_size

    def samples(self, steps: int) -> int:
        return 10 * steps

    def row_ids(self, step: int) -> dict[str, list[int]]:
        return {"rows": [step]}


def test_skipped_steps_are_passed_over_once() -> None:
    """From the fourth step on two are skipped, and from the sixth on one more."""
    skipping = SkippingSource(Numbers(), [(3, 2), (5, 1)])
    expected = [0, 1, 2, 5, 6, 8, 9]
    found: list[Any] = [skipping.step_batches(step, 1, 4) for step in range(7)]
    assert found == [(step, 1, 4) for step in expected]
    assert [skipping.row_ids(step)["rows"] for step in range(7)] == [[step] for step in expected]
    assert [skipping.samples(step) for step in range(7)] == [10 * step for step in expected]
