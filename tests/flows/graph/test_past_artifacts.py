"""Throughputs that artifacts of other runs tell of: which are read, and which one is the nearest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cloze.core.errors import DataError
from cloze.core.stages.cost import CostEstimate, MeasuredThroughput
from cloze.flows.graph import estimate
from cloze.flows.graph.estimate import MeasuredThroughputs


def write(runs: Path, name: str, changed: float | None) -> Path:
    directory = runs / name
    directory.mkdir(parents=True)
    if changed is not None:
        (directory / "manifest.json").write_text("{}")
        os.utime(directory / "manifest.json", (changed, changed))
    return directory


def test_the_newest_of_each_stage_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "MAX_ARTIFACTS", 3)
    write(tmp_path, "a/vocab-1", 30.0)
    write(tmp_path, "b/vocab@x-2", 50.0)
    write(tmp_path, "b/vocab-3", None)
    write(tmp_path, "b/vocab-4", 40.0)
    write(tmp_path, "b/report-5", 60.0)
    write(tmp_path, "b/other-6", 60.0)
    (tmp_path / "b" / "vocab-link").symlink_to(tmp_path / "a" / "vocab-1")
    (tmp_path / "file").touch()
    measured = MeasuredThroughputs(tmp_path)
    names = [str(path.relative_to(tmp_path)) for path in measured._newest("vocab")]
    assert names == ["b/vocab@x-2", "b/vocab-4", "a/vocab-1"]
    assert [path.name for path in measured._newest("report")] == ["report-5"]
    assert measured._newest("corpus") == []
    write(tmp_path, "c/corpus-1", 1.0)
    assert measured._newest("corpus") == [], "directories are listed once"


def test_a_run_that_cannot_be_listed_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        write(tmp_path, f"{name}/vocab-1", 1.0)
    scan = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path).name == "a":
            raise PermissionError(13, "not yours")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    (found,) = MeasuredThroughputs(tmp_path)._newest("vocab")
    assert found.parent.name == "b"


def test_the_nearest_of_its_kind_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "vocab-1": (100.0, MeasuredThroughput(amount=10.0, seconds=90.0, kind="cpu", size=8.0)),
        "vocab-2": (100.0, MeasuredThroughput(amount=1000.0, seconds=110.0, kind="cpu", size=1.0)),
        "vocab-3": (100.0, MeasuredThroughput(amount=10.0, seconds=50.0, kind="cuda", size=1.0)),
        "vocab-4": (100.0, MeasuredThroughput(amount=0.0, seconds=50.0, kind="cpu", size=1.0)),
        "vocab-5": (100.0, None),
        "vocab-6": DataError("it is damaged"),
    }
    for number, name in enumerate(told):
        write(tmp_path, f"a/{name}", float(number))
    read: list[str] = []

    def manifest(path: str) -> Any:
        read.append(path)
        found = told[Path(path).name]
        if isinstance(found, Exception):
            raise found
        return {"seconds": found[0], "found": found[1]}

    monkeypatch.setattr(estimate.artifact, "read_manifest", manifest)
    monkeypatch.setattr(estimate, "artifact_metadata", lambda found: found)
    costs: Any = type("Costs", (), {"measure": staticmethod(lambda facts: facts["found"])})
    measured = MeasuredThroughputs(tmp_path)

    def nearest(**cost: Any) -> Any:
        found = measured.nearest("vocab", costs, CostEstimate(speed=1.0, **cost))
        return found and (found[0].seconds, found[1])

    assert nearest(work=10.0, kind="cpu", size=8.0) == (90.0, 10.0)
    assert nearest(work=10.0, kind="cpu", size=1.0) == (90.0, 10.0), (
        "sizes count twice, here as much as work"
    )
    assert nearest(work=1000.0, kind="cpu", size=1.0) == (110.0, 0.0)
    assert nearest(work=1000.0, kind="cuda", size=1.0) == (50.0, 50.0)
    assert nearest(work=1000.0, kind="tpu", size=1.0) is None
    assert len(read) == len(told), "each is read once"
