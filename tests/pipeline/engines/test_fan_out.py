"""Fanning out: order of results, resuming, errors, and equal shares of work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import DataError
from pipeline.core.execution import Execution
from pipeline.core.stage import Build
from pipeline.engines.fan_out import IDLE, dealt, fan_out


def double(unit: dict[str, Any]) -> dict[str, Any]:
    """Twice the number; leaves a trace, so that a test sees how often it was called."""
    if unit["number"] < 0:
        raise DataError(f"number {unit['number']} is below zero; give a larger one")
    with Path(unit["trace"]).open("a") as stream:
        stream.write("x")
    return {"twice": 2 * unit["number"]}


def build(tmp_path: Path, workers: int = 1) -> Build:
    return Build(path=str(tmp_path / "out"), inputs={}, execution=Execution(workers=workers), fingerprint="f")


def units(tmp_path: Path, count: int) -> list[tuple[str, Any]]:
    return [(f"unit-{n}", {"number": n, "trace": str(tmp_path / f"trace-{n}")}) for n in range(count)]


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_units(tmp_path: Path, workers: int) -> None:
    made = fan_out(build(tmp_path, workers), "double", units(tmp_path, 5), double, unit_name="units", weights=[1, 9, 1, 1, 5])
    assert made == [{"twice": 2 * n} for n in range(5)]


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    fan_out(build(tmp_path), "double", units(tmp_path, 2), double, unit_name="units")
    fan_out(build(tmp_path), "double", units(tmp_path, 4), double, unit_name="units")
    assert [(tmp_path / f"trace-{n}").read_text() for n in range(4)] == ["x"] * 4


def test_a_users_fault_keeps_its_kind_and_is_tried_again(tmp_path: Path) -> None:
    bad = [*units(tmp_path, 1), ("bad", {"number": -1, "trace": ""})]
    for _ in range(2):
        with pytest.raises(DataError, match="number -1 is below zero"):
            fan_out(build(tmp_path), "double", bad, double, unit_name="units")


def test_work_is_dealt_equally() -> None:
    named = [(str(n), n) for n in range(6)]
    order = dealt(named, [41, 23, 16, 10, 9, 8], 2)
    hands = [[name for name, _ in order[worker::2] if name != IDLE] for worker in range(2)]
    weights = dict(zip("012345", [41, 23, 16, 10, 9, 8], strict=True))
    assert sorted(name for hand in hands for name in hand) == list("012345")
    assert abs(sum(weights[n] for n in hands[0]) - sum(weights[n] for n in hands[1])) <= 10
