"""A worker runs the stage that its job names, and no stage of another package."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from cloze.core import plugins
from cloze.core.errors import UsageError
from cloze.core.stages.execution import Execution
from cloze.core.stages.worker import Job, PipeReporter, run


def job(reference: str, path: Path) -> Job:
    execution = Execution().model_dump(mode="json")
    return Job(
        stage="x",
        reference=reference,
        config={},
        path=str(path),
        inputs={},
        execution=execution,
        fingerprint="f",
    )


@pytest.mark.parametrize(
    "reference", ["cloze.model.train.stage:STAGE", "pipelines.evil:STAGE", "os:system", ""]
)
def test_a_stage_of_another_package_is_refused_before_it_is_imported(
    reference: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"is outside the package cloze.pipeline"):
        run(job(reference, tmp_path), "cloze.pipeline", PipeReporter())


def test_a_job_is_what_its_file_says(tmp_path: Path) -> None:
    made = job("cloze.pipeline.corpus.stage:STAGE", tmp_path)
    made.write(str(tmp_path / "job.json"))
    assert Job.read(str(tmp_path / "job.json")) == made


@pytest.mark.parametrize(
    ("store", "mode"), [("s3://key:hunter2@bucket", 0o600), ("s3://bucket", 0o644)]
)
def test_a_job_with_a_secret_is_its_owner_s_alone_to_read(
    store: str, mode: int, tmp_path: Path
) -> None:
    path, before = tmp_path / "job.json", os.umask(0o022)
    try:
        wanted = dataclasses.replace(job("pipeline.x:STAGE", tmp_path), config={"source": store})
        wanted.write(str(path))
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode
    assert Job.read(str(path)) == wanted  # what starts a stage needs the secret


def test_a_worker_runs_the_stages_of_plug_ins_but_nothing_else_of_other_packages() -> None:
    assert plugins.is_stage("cloze.labs.inside.stages:PRUNE")
    assert plugins.is_stage("cloze.labs.inside.stages:ATTENTION_STAGE")
    for reference in (
        "cloze.labs.records.babylm:reader",
        "os:system",
        "cloze.model.hub.stages:IMPORT",
    ):
        assert not plugins.is_stage(reference)
