"""`cloze resume`: go on with a run, or with a single training, that was interrupted or failed, with the settings it was begun with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from flows.commands.common import json_option
from flows.commands.run import PREFECT
from flows.commands.spelling import EXECUTION
from flows.commands.stage_command import BEAM, OF_EXECUTION, OF_RUNS, Given, run_stage

ALONE = {"launcher": "local", "hostfile": None, "min_nodes": None, "nodes": 1, "node_rank": 0, "master": "127.0.0.1:0"}


class _Resume(click.Command):
    """With the options of how a training is run, which are looked up when they are needed."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not any((parameter.name or "").startswith(OF_EXECUTION) for parameter in self.params):
            from flows.commands.options import field_options
            from pipeline.core.execution import Execution

            wanted = Execution.model_fields.keys() - BEAM - OF_RUNS
            self.params += field_options(Execution, OF_EXECUTION, EXECUTION, {}, wanted.__contains__)
        return super().get_params(ctx)


@click.command(cls=_Resume)
@click.argument("what")
@PREFECT
@json_option
def resume(what: str, prefect: bool | None, as_json: bool, **options: Any) -> None:
    """Go on with WHAT: the name of a run, of which what failed and what needs it is made; or the directory of a training.

    It goes on as it was begun, or as the options say; --processes without --launcher, --hostfile or --nodes means this machine alone.
    """
    from flows.graph import plan, record

    changed = {name.removeprefix(OF_EXECUTION): value for name, value in options.items() if value not in (None, ())}
    if "processes" in changed and not changed.keys() & {"launcher", "hostfile", "nodes"}:
        changed |= ALONE
    runs = plan.runs_directory()
    if "/" not in what and record.newest(runs / what) is not None:
        _resume_run(what, changed, prefect, as_json)
    else:
        _resume_training(what, changed, as_json)


def _resume_run(name: str, changed: Mapping[str, Any], prefect: bool | None, as_json: bool) -> None:
    from flows.commands.run import start
    from flows.graph import plan, record
    from flows.graph.config import RunConfig
    from flows.session import RunParameters, Session

    found = record.read(plan.runs_directory(), name)
    parameters = RunParameters.model_validate({**found["parameters"], "start_from": [], "force": []})  # they count once
    values = {**found["config"], "run": {**(found["config"].get("run") or {}), **changed}} if changed else found["config"]
    start(Session(parameters, config=RunConfig(values, name)), prefect=prefect, as_json=as_json)


def _resume_training(path: str, changed: Mapping[str, Any], as_json: bool) -> None:
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
    execution = {**job.execution, **changed}
    if "processes" in changed and "devices" not in changed:
        execution.pop("devices", None)  # those that were free then
    run_stage(Given(stage=job.stage, config=job.config, inputs=job.inputs, execution=execution, out=path, as_json=as_json))
