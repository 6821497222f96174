"""An artifact's input is found where it was, or near the artifact when it has moved."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cloze.core.artifacts import fingerprints
from cloze.core.errors import DataError
from cloze.core.stages.execute import execute
from cloze.core.stages.execution import Execution
from cloze.core.stages.worker import JOB, LOGS, Job
from cloze.labs.vectors import find_input
from tests.core.test_stage import TOY, ToyConfig


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path, str]:
    """An input, the artifact that was made of it, and the input's fingerprint."""
    source, out = tmp_path / "old" / "source", tmp_path / "runs" / "run" / "out"
    execute(TOY, ToyConfig(size=5), {}, str(source))
    execute(TOY, ToyConfig(), {}, str(out))
    job = Job(
        stage="x",
        reference="x:STAGE",
        config={},
        path=str(out),
        inputs={"dataset": str(source)},
        execution=Execution().model_dump(mode="json"),
        fingerprint="f",
    )
    (out / LOGS).mkdir(exist_ok=True)
    job.write(str(out / LOGS / JOB))
    return source, out, fingerprints.input_fingerprint(str(source))


def test_where_it_was(made: tuple[Path, Path, str]) -> None:
    source, out, fingerprint = made
    assert find_input(str(out), "dataset", fingerprint) == str(source)


@pytest.mark.parametrize("place", ["runs/run/moved", "runs/moved", "runs/other/moved"])
def test_near_the_artifact_when_it_has_moved(
    made: tuple[Path, Path, str], tmp_path: Path, place: str
) -> None:
    source, out, fingerprint = made
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    shutil.move(source, tmp_path / place)
    assert find_input(str(out), "dataset", fingerprint) == str(tmp_path / place)


def test_what_stands_there_now_is_another_one(made: tuple[Path, Path, str], tmp_path: Path) -> None:
    source, out, fingerprint = made
    shutil.move(source, tmp_path / "runs" / "run" / "moved")
    execute(TOY, ToyConfig(size=6), {}, str(source))
    assert find_input(str(out), "dataset", fingerprint) == str(tmp_path / "runs" / "run" / "moved")


def test_a_part_of_an_artifact_is_found_in_it(made: tuple[Path, Path, str], tmp_path: Path) -> None:
    source, out, _ = made
    fingerprint = fingerprints.input_fingerprint(str(source / "out.bin"))
    assert fingerprint.endswith("/out.bin")
    shutil.move(source, tmp_path / "runs" / "run" / "moved")
    found = find_input(str(out), "dataset", fingerprint)
    assert found == str(tmp_path / "runs" / "run" / "moved" / "out.bin")


@pytest.mark.parametrize("damage", ["none", "{", "[]", "{}", "other role"])
def test_a_record_that_cannot_be_read_hides_nothing(
    made: tuple[Path, Path, str], tmp_path: Path, damage: str
) -> None:
    source, out, fingerprint = made
    shutil.move(source, tmp_path / "runs" / "run" / "moved")
    record = out / LOGS / JOB
    if damage == "none":
        record.unlink()
    elif damage == "other role":
        record.write_text(record.read_text().replace('"dataset"', '"corpus"'))
    else:
        record.write_text(damage)
    assert find_input(str(out), "dataset", fingerprint) == str(tmp_path / "runs" / "run" / "moved")


def test_what_is_in_neither_place_is_told(made: tuple[Path, Path, str]) -> None:
    source, out, fingerprint = made
    shutil.rmtree(source)
    with pytest.raises(DataError) as caught:
        find_input(str(out), "dataset", fingerprint)
    assert str(caught.value) == (
        f"the dataset of {out} ({fingerprint[:12]}) is neither where it was nor near it; put them "
        f"into one directory"
    )
