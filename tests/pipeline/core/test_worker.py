"""A worker runs the stage that its job names, and no stage of another package."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.core.errors import UsageError
from pipeline.core.execution import Execution
from pipeline.core.worker import Events, Job, run


def job(reference: str, path: Path) -> Job:
    execution = Execution().model_dump(mode="json")
    return Job(stage="x", reference=reference, config={}, path=str(path), inputs={}, execution=execution, fingerprint="f")


@pytest.mark.parametrize("reference", ["model.train.stage:STAGE", "pipelines.evil:STAGE", "os:system", ""])
def test_a_stage_of_another_package_is_refused_before_it_is_imported(reference: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"lies outside the package pipeline"):
        run(job(reference, tmp_path), "pipeline", Events())


def test_a_job_is_what_its_file_says(tmp_path: Path) -> None:
    made = job("pipeline.corpus.stage:STAGE", tmp_path)
    made.write(str(tmp_path / "job.json"))
    assert Job.read(str(tmp_path / "job.json")) == made
