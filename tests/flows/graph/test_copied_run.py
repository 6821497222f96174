"""A copy of a living run's directory says whose copy it is, whatever it was copied with."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cloze.core.artifacts.lock import locked
from cloze.flows.prefect import sweep
from cloze.flows.run import cancellation, status_file
from tests.flows.graph.test_record import begun
from tests.flows.graph.test_record import directory as directory


@pytest.mark.parametrize("way", [["cp", "-r"], ["cp", "-a"], ["cp", "-rl"]], ids=" ".join)
def test_a_copy_of_a_living_run_is_called_one(directory: Path, way: list[str]) -> None:
    runs = directory.parent
    told = begun(directory, "a", "b")
    told.node("a", status_file.RUNNING)
    with locked(str(directory)):
        subprocess.run([*way, str(directory), str(runs / "twin")], check=True)
        if way[1] == "-rl":  # hard links are the same files, and the same lock
            assert status_file.read(runs, "twin")["state"] == "running"
            return
        found = status_file.read(runs, "twin")
        assert found["state"] == "crashed"
        assert found["error"].startswith(
            f"this is a copy of run night, which process {found['pid']} goes on with; delete it"
        )
        assert "`cloze resume twin`" in found["error"]
        assert sweep.sweep(runs, mark=False) == [], "its process is not gone"
        assert cancellation.mark_crashed(runs) == []
        assert status_file.read(runs, "night")["state"] == "running"
    told._ended.set()
    found = status_file.read(runs, "night")
    assert found["error"].endswith("is gone")


def test_a_copy_elsewhere_is_one_too(directory: Path, tmp_path: Path) -> None:
    begun(directory, "a")
    with locked(str(directory)):
        shutil.copytree(directory, tmp_path / "other" / "night")
        error = status_file.read(tmp_path / "other", "night")["error"]
    assert error.startswith("this is a copy of run night")
