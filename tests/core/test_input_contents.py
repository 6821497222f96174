"""What an artifact records of its inputs' contents: of finished ones, and nothing of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.core import storage
from cloze.core.artifacts import artifact
from cloze.core.artifacts.lineage import input_contents
from cloze.core.config import StageConfig
from cloze.core.errors import ClozeError
from cloze.core.stages.execute import execute
from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult


class Config(StageConfig):
    stop: bool = False


def train(config: Config, build: BuildContext) -> StageResult:
    """Write a checkpoint, then stop before the end, or go on to it."""
    storage.write_bytes(build.file("checkpoints", "step-1", "weights"), b"1")
    if config.stop or not storage.exists(storage.join(build.scratch, "stopped")):
        storage.write_bytes(storage.join(build.scratch, "stopped"), b"")
        raise ClozeError("stopped")
    storage.write_bytes(build.file("weights"), b"2")
    return StageResult()


def read(config: Config, build: BuildContext) -> StageResult:
    """Write a unit once; the first attempt stops after it."""
    done = storage.join(build.scratch, "done")
    if not storage.exists(done):
        storage.write_bytes(build.file("unit"), b"1")
        storage.write_bytes(done, b"")
        raise ClozeError("stopped")
    return StageResult()


TRAIN = Stage(name="train", version=1, config=Config, run=train)
READ = Stage(name="read", version=1, config=Config, run=read, inputs={"model": InputSpec()})


@pytest.fixture
def training(tmp_path: Path) -> str:
    """A training that has stopped at its first checkpoint."""
    path = str(tmp_path / "training")
    with pytest.raises(ClozeError, match="stopped"):
        execute(TRAIN, Config(), {}, path)
    return path


def test_only_a_finished_artifact_has_a_content(training: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    inputs = {"text": str(tmp_path / "a.txt"), "part": f"{training}/checkpoints/step-1"}
    assert input_contents(inputs | {"model": training}) == {}
    sha256 = execute(TRAIN, Config(), {}, training).manifest.content_sha256
    assert input_contents(inputs | {"model": training}) == {"part": sha256, "model": sha256}


def test_an_input_that_is_finished_meanwhile_has_not_changed(training: str, tmp_path: Path) -> None:
    """What was begun on its checkpoint goes on."""
    out, inputs = str(tmp_path / "out"), {"model": f"{training}/checkpoints/step-1"}
    with pytest.raises(ClozeError, match="stopped"):
        execute(READ, Config(), inputs, out)
    claim = artifact.read_claim(out)
    assert claim is not None
    assert claim.inputs == {}
    now = {"model": execute(TRAIN, Config(), {}, training).manifest.content_sha256}
    assert artifact.changed_inputs(claim.inputs, now) == []
    assert artifact.changed_inputs({"model": "another"}, now) == ["model"]
    execute(READ, Config(), inputs, out)
    assert Path(out, "unit").read_bytes() == b"1"
