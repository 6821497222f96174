"""`cloze resume`: go on with a training that was interrupted, with the settings it was begun with."""

from __future__ import annotations

import click

from flows.commands.common import json_option
from flows.commands.stage_command import Given, run_stage


@click.command()
@click.argument("path")
@json_option
def resume(path: str, as_json: bool) -> None:
    """Go on with an interrupted pretraining at PATH, with the settings it was begun with."""
    from flows.graph.launch import JOB, LOGS
    from pipeline.core import artifact, storage
    from pipeline.core.errors import DataError
    from pipeline.core.worker import Job

    if artifact.is_artifact(path):
        manifest = artifact.read_manifest(path)
        if manifest.stage != "pretrain":
            raise DataError(f"{path} holds a {manifest.stage} artifact; resume takes the directory of a pretraining")
    job_file = storage.join(path, LOGS, JOB)
    if not storage.exists(job_file):
        raise DataError(
            f"{path} holds no pretraining that was begun ({LOGS}/{JOB} is missing); start one with `cloze pretrain`"
        )
    job = Job.read(job_file)
    if job.stage != "pretrain":
        raise DataError(f"{path} was begun by stage {job.stage}; resume takes the directory of a pretraining")
    run_stage(Given(stage=job.stage, config=job.config, inputs=job.inputs, execution=job.execution, out=path, as_json=as_json))
