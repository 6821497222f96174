"""Fanning out: order of results, resuming, errors, and equal shares of work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from cloze.core import storage
from cloze.core.artifacts import claim
from cloze.core.errors import ClozeError, DataError
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.pipeline.runners.fan_out import fan_out


def double(unit: dict[str, Any]) -> dict[str, Any]:
    """Twice the number; leaves a trace, so that a test sees how often it was called."""
    if unit["number"] < 0:
        raise DataError(f"number {unit['number']} is below zero; give a larger one")
    with Path(unit["trace"]).open("a") as stream:
        stream.write("x")
    return {"twice": 2 * unit["number"]}


def build(tmp_path: Path, workers: int = 1) -> BuildContext:
    return BuildContext(
        path=str(tmp_path / "out"), inputs={}, execution=Execution(workers=workers), fingerprint="f"
    )


def units(tmp_path: Path, count: int) -> list[tuple[str, Any]]:
    return [
        (f"unit-{n}", {"number": n, "trace": str(tmp_path / f"trace-{n}")}) for n in range(count)
    ]


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_units(tmp_path: Path, workers: int) -> None:
    made = fan_out(
        build(tmp_path, workers),
        "double",
        units(tmp_path, 5),
        double,
        unit_name="units",
        weights=[1, 9, 1, 1, 5],
    )
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


def test_all_failed_units_are_told_at_once_and_one_mend_suffices(tmp_path: Path) -> None:
    all_bad = [(f"bad-{n}", {"number": -n, "trace": ""}) for n in range(1, 6)]
    todo = [*units(tmp_path, 2), *all_bad]
    with pytest.raises(DataError) as caught:
        fan_out(build(tmp_path), "double", todo, double, unit_name="units")
    message = str(caught.value)
    assert message.startswith(
        "5 of 7 units of step double failed: (1) number -1 is below zero; give a larger one; (2) "
        "number -2 "
    )
    assert "number -4" not in message
    listed = Path(message.rpartition("the others are in ")[2]).read_text().splitlines()
    assert [line.partition(":")[0] for line in listed] == [name for name, _ in all_bad]
    corrected = [(name, {"number": 9, "trace": str(tmp_path / name)}) for name, _ in all_bad]
    assert (
        fan_out(
            build(tmp_path), "double", [*units(tmp_path, 2), *corrected], double, unit_name="units"
        )[2:]
        == [{"twice": 18}] * 5
    )
    assert (tmp_path / "trace-0").read_text() == "x"  # what was done is not done again


@pytest.mark.parametrize("count", [2, 3, 4])
def test_three_failures_are_told_and_the_others_are_in_a_file(tmp_path: Path, count: int) -> None:
    bad = [(f"bad-{n}", {"number": -n, "trace": ""}) for n in range(1, count + 1)]
    with pytest.raises(DataError) as caught:
        fan_out(build(tmp_path), "double", bad, double, unit_name="units")
    told = "; ".join(
        f"({n}) number -{n} is below zero; give a larger one" for n in range(1, min(count, 3) + 1)
    )
    message = f"{count} of {count} units of step double failed: {told}"
    log = tmp_path / "out" / "_logs" / "failed-double.txt"
    assert str(caught.value) == (message if count < 4 else f"{message}; the others are in {log}")
    assert len(log.read_text().splitlines()) == count


def test_units_that_fail_alike_are_told_once(tmp_path: Path) -> None:
    alike = [(f"bad-{n}", {"number": -1, "trace": ""}) for n in range(5)]
    with pytest.raises(DataError, match="^number -1 is below zero; give a larger one$"):
        fan_out(build(tmp_path), "double", alike, double, unit_name="units")


def test_failures_of_a_try_that_was_killed_are_not_told_again(tmp_path: Path) -> None:
    begun = build(tmp_path)
    results = Path(begun.scratch) / "double"
    results.mkdir(parents=True)
    (results / "unit-0.failed").write_text('{"error": "of yesterday", "exit_code": 3}')
    assert fan_out(begun, "double", units(tmp_path, 1), double, unit_name="units") == [{"twice": 0}]


def overtaken(unit: dict[str, Any]) -> dict[str, Any]:
    """Another build begins in the directory while the unit is at work; its file comes late."""
    if unit["number"] == 1:
        claim.claim_directory(unit["out"], claim.Claim("toy", "other settings"), force=False)
    storage.write_bytes(storage.join(unit["out"], f"part-{unit['number']}"), b"late")
    return {}


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_unit_of_a_superseded_attempt_writes_nothing(tmp_path: Path, workers: int) -> None:
    """Such as one that goes on on another machine when the driver has died, and its
    lock with it.
    """
    out = str(tmp_path / "out")
    begun = build(tmp_path, workers)
    begun.token = claim.claim_directory(out, claim.Claim("toy", "f"), force=False).token
    units = [(f"unit-{n}", {"number": 1, "out": out}) for n in range(2)]
    with (
        pytest.raises(
            ClozeError,
            match=r"out is being built by another attempt .*; this attempt writes nothing more",
        ),
        begun.cleanup,
    ):
        fan_out(begun, "late", units, overtaken, unit_name="units")
    assert [name for name in storage.list_files(out) if "_logs/" not in name] == [claim.BUILDING]
    again = build(tmp_path)
    again.token = begun.token
    with pytest.raises(ClozeError, match="another attempt"), again.cleanup:
        fan_out(
            again, "later", [("unit-2", {"number": 2, "out": out})], overtaken, unit_name="units"
        )
    assert not storage.exists(f"{out}/part-2")


def test_looking_for_results_asks_nothing_of_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress looks twice a second, and a step may have tens of thousands of units."""
    begun, todo = build(tmp_path), [(f"unit-{n}", {"number": n}) for n in range(500)]
    results = Path(begun.scratch) / "double"
    results.mkdir(parents=True)
    for name, _ in todo:
        (results / f"{name}.json").write_text("{}")
    asked = list[str]()
    info = LocalFileSystem.info
    monkeypatch.setattr(
        LocalFileSystem,
        "info",
        lambda self, path, **how: (asked.append(str(path)), info(self, path, **how))[1],
    )
    with begun.cleanup:
        fan_out(begun, "double", todo, double, unit_name="units")
    assert len([path for path in asked if "unit-" in path]) == 0
