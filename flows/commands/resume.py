"""`cloze resume`: go on with a run, or with a single training, that was interrupted or failed, with the settings it was begun with."""

from __future__ import annotations

import click

from flows.commands.common import json_option
from flows.commands.run import PREFECT
from flows.commands.stage_command import Given, run_stage


@click.command()
@click.argument("what")
@PREFECT
@json_option
def resume(what: str, prefect: bool | None, as_json: bool) -> None:
    """Go on with WHAT: the name of a run, of which what failed and what needs it is made; or the directory of a training."""
    from flows.graph import plan, record

    runs = plan.runs_directory()
    if "/" not in what and record.newest(runs / what) is not None:
        _resume_run(what, prefect, as_json)
    else:
        _resume_training(what, as_json)


def _resume_run(name: str, prefect: bool | None, as_json: bool) -> None:
    from flows.commands.run import start
    from flows.graph import plan, record
    from flows.graph.config import RunConfig
    from flows.session import RunParameters, Session

    found = record.read(plan.runs_directory(), name)
    parameters = RunParameters.model_validate({**found["parameters"], "start_from": [], "force": []})  # they count once
    start(Session(parameters, config=RunConfig(found["config"], name)), prefect=prefect, as_json=as_json)


def _resume_training(path: str, as_json: bool) -> None:
    from pipeline.core import artifact, storage
    from pipeline.core.errors import DataError
    from pipeline.core.worker import JOB, LOGS, Job

    if artifact.is_artifact(path):
        manifest = artifact.read_manifest(path)
        if manifest.stage not in ("pretrain", "finetune"):
            raise DataError(
                f"{path} holds a {manifest.stage} artifact; resume takes the directory of a training, or a run's name"
            )
    job_file = storage.join(path, LOGS, JOB)
    if not storage.exists(job_file):
        raise DataError(
            f"{path} holds no training that was begun ({LOGS}/{JOB} is missing) and is no run's name; start one with `cloze pretrain`"
        )
    job = Job.read(job_file)
    if job.stage not in ("pretrain", "finetune"):
        raise DataError(f"{path} was begun by stage {job.stage}; resume takes the directory of a training, or a run's name")
    run_stage(Given(stage=job.stage, config=job.config, inputs=job.inputs, execution=job.execution, out=path, as_json=as_json))
