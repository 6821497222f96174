"""Commands that control and show runs: `cancel`, `resume`, `status` and `logs`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloze.flows.commands.option_overrides import GroupedCommand, emit, json_option
from cloze.flows.commands.run import PREFECT
from cloze.flows.commands.stage_command import (
    BEAM,
    OF_EXECUTION,
    RUN_ONLY_FIELDS,
    StageArguments,
    run_stage,
)

if TYPE_CHECKING:
    from cloze.flows.run.session import RunParameters


@click.command()
@click.argument("target")
@json_option
def cancel(target: str, as_json: bool) -> None:
    """Stop a run or a stage; trainings save a checkpoint.

    TARGET is a run that was started on this machine, or the directory of an unfinished artifact,
    started by any launcher on any machine. `cloze resume TARGET` continues it.
    """
    from cloze.flows.graph import plan
    from cloze.flows.run import status_file

    runs = plan.runs_directory()
    if "/" in target or (status_file.newest(runs / target) is None and Path(target).is_dir()):
        _cancel_artifact(target, as_json)
    else:
        _cancel_run(runs, target, as_json)


def _cancel_artifact(path: str, as_json: bool) -> None:
    from cloze.flows.graph import plan
    from cloze.flows.launch import cancel_requests, coordinator
    from cloze.flows.run import status_file

    runs = plan.runs_directory()
    known = status_file.newest(status_file.directory_of(runs, path))

    def told(line: str) -> None:
        click.echo(line, err=True)

    launch = coordinator.unattended(path)
    is_queued = known is not None and known["state"] == status_file.RUNNING and launch is None
    if is_queued and cancel_requests.holder(path) is None:  # the command waits for a GPU
        _cancel_run(runs, path, as_json)
        return
    found = cancel_requests.cancel(path, told) if launch is None else launch.cancel(told)
    if as_json:
        emit(found)
    else:
        kept = f"; {found['checkpoint']} is saved" if found["checkpoint"] else ""
        click.echo(f"{path} is {found['state']}{kept}; continue with `cloze resume {path}`")


def _cancel_run(runs: Path, run: str, as_json: bool) -> None:
    from cloze.flows.run import cancel as ending

    found = ending.cancel(runs, run, lambda line: click.echo(line, err=True))
    stopped = [
        name for name, node in found["nodes"].items() if node["state"] in ("stopped", "crashed")
    ]
    if as_json:
        emit({"run": run, "state": found["state"], "stopped": stopped})
    else:
        click.echo(f"{run} is {found['state']}; continue with `cloze resume {run}`")


ALONE = {"launcher": "local", "hostfile": None, "min_nodes": None, "nodes": 1}


class _Resume(GroupedCommand):
    """Command that adds the execution options of a training on first use."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not any((parameter.name or "").startswith(OF_EXECUTION) for parameter in self.params):
            from cloze.flows.commands.options import execution_options

            unread = BEAM | RUN_ONLY_FIELDS
            self.params += execution_options(OF_EXECUTION, "", lambda name: name not in unread)
        return super().get_params(ctx)


@click.command(cls=_Resume)
@click.argument("target")
@PREFECT
@json_option
def resume(target: str, prefect: bool | None, as_json: bool, **options: Any) -> None:
    """Continue an interrupted or failed run or training.

    TARGET is the name of a run, whose failed nodes and those that depend on them are built, or the
    directory of a training, which continues from its newest checkpoint. Options change the recorded
    settings; --processes without --launcher, --hostfile or --nodes means this machine alone.
    """
    from cloze.flows.graph import plan
    from cloze.flows.run import status_file

    changed = {
        name.removeprefix(OF_EXECUTION): value
        for name, value in options.items()
        if value not in (None, ())
    }
    if "processes" in changed and not changed.keys() & {"launcher", "hostfile", "nodes"}:
        changed |= ALONE
    runs = plan.runs_directory()
    if "/" not in target and status_file.newest(runs / target) is not None:
        _resume_run(target, changed, prefect, as_json)
    else:
        _resume_training(target, changed, as_json)


def _resume_run(name: str, changed: Mapping[str, Any], prefect: bool | None, as_json: bool) -> None:
    from cloze.flows.commands.run import start
    from cloze.flows.graph import plan
    from cloze.flows.graph.config import RunConfig
    from cloze.flows.run import status_file
    from cloze.flows.run.session import RunParameters, RunSession

    found = status_file.read(plan.runs_directory(), name)
    # forced nodes are not forced again
    parameters = RunParameters.model_validate(
        {**found["parameters"], "start_from": [], "force": []}
    )
    config = _with_secrets(name, found["config"], parameters)
    values = {**config, "run": {**(config.get("run") or {}), **changed}} if changed else config
    start(RunSession(parameters, config=RunConfig(values, name)), prefect=prefect, as_json=as_json)


def _with_secrets(
    name: str, recorded: Mapping[str, Any], parameters: RunParameters
) -> Mapping[str, Any]:
    """Return the config of a run with its secrets, which the record lacks, read from their source.

    Raises:
        UsageError: the source has changed or lacks the secrets.
    """
    from cloze.core.errors import UsageError
    from cloze.core.secrets import REDACTED, redact
    from cloze.flows.graph import config as configs

    if REDACTED not in json.dumps(recorded):
        return recorded
    values = configs.load(parameters.config, parameters.overrides).values
    if json.dumps(redact(values)) != json.dumps(recorded) or json.dumps(values) == json.dumps(
        recorded
    ):
        raise UsageError(
            f"the record of run {name} holds no secrets ({REDACTED} stands for them), and "
            f"{parameters.config} is not what it was begun from; "
            f"start it again with `cloze run {parameters.config}` and the same options"
        )
    return values


def _resume_training(path: str, changed: Mapping[str, Any], as_json: bool) -> None:
    from cloze.core import storage
    from cloze.core.artifacts import artifact
    from cloze.core.errors import DataError
    from cloze.core.stages.worker import JOB, LOGS, Job

    if artifact.is_artifact(path):
        manifest = artifact.read_manifest(path)
        if manifest.stage not in ("pretrain", "finetune"):
            raise DataError(
                f"{path} holds a {manifest.stage} artifact; resume takes the directory of a "
                f"training, or a run's name"
            )
    job_file = storage.join(path, LOGS, JOB)
    if not storage.exists(job_file):
        raise DataError(
            f"{path} holds no training that was begun ({LOGS}/{JOB} is missing) and is no run's "
            f"name; start one with `cloze pretrain`"
        )
    job = Job.read(job_file)
    if job.stage not in ("pretrain", "finetune"):
        raise DataError(
            f"{path} was begun by stage {job.stage}; resume takes the directory of a training, or "
            f"a run's name"
        )
    execution = {**job.execution, **changed}
    if "processes" in changed and "gpu_ids" not in changed:
        execution.pop("gpu_ids", None)  # GPUs that were free then
    run_stage(
        StageArguments(
            stage=job.stage,
            config=job.config,
            inputs=job.inputs,
            execution=execution,
            out=path,
            as_json=as_json,
        )
    )


@click.command()
@click.argument("name", required=False, metavar="[RUN]")
@json_option
def status(name: str | None, as_json: bool) -> None:
    """List all runs, or show the progress of one run.

    Runs and the artifacts that commands make are in ./runs, or in $CLOZE_RUNS_DIR. RUN is the name
    of a run, or the directory of a command's artifact.
    """
    from rich.console import Console

    from cloze.flows.graph import plan
    from cloze.flows.run import status_file
    from cloze.flows.views import run_tables as views

    runs = plan.runs_directory()
    out = Console(highlight=False)
    if name is not None:
        found = status_file.read(runs, name)
        if as_json:
            emit({"runs": [_row(found)]})
        else:
            views.show_run(out, str(status_file.directory_of(runs, name)), found)
        return
    everything = {**status_file.command_records(runs), **status_file.all_records(runs)}
    if as_json:
        emit({"runs": [_row(found) for found in everything.values()]})
    elif not everything:
        out.print(f"No runs in {runs} yet; start one with `cloze run demo`.")
    else:
        views.show_runs(out, everything)


def _row(found: dict[str, Any]) -> dict[str, Any]:
    from cloze.flows.graph.estimate import estimate_error

    return {
        **{key: value for key, value in found.items() if key not in ("config", "parameters")},
        "off": estimate_error(found),
    }


FINGERPRINT = 12  # characters of the fingerprint in a directory's name
METRICS = "metrics.jsonl"  # in a training's artifact: one line per log entry


@click.command()
@click.argument("target")
@click.option(
    "--lines",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Last lines of each log.",
)
@json_option
def logs(target: str, lines: int, as_json: bool) -> None:
    """Show the logs of a run, node, stage or artifact.

    TARGET is a run, a node (RUN/NODE, such as sample/finetune@sst2-1), a stage, or an artifact's
    directory. Of several directories that match, the one with the newest log is shown.
    """
    from cloze.core.stages.worker import LOGS

    directory = _find(target)
    found = {log: _end(log, lines) for log in sorted((directory / LOGS).glob("*.log"))}
    metrics = _end(directory / METRICS, min(lines, 10)) if (directory / METRICS).exists() else []
    if as_json:
        values = list(filter(None, map(_values, metrics)))
        emit(
            {
                "logs": [{"file": str(log), "lines": end} for log, end in found.items()],
                "metrics": values,
            }
        )
        return
    for log, end in found.items():
        click.echo("\n".join([f"==> {log} <==", *end]))
    if metrics:
        click.echo("\n".join([f"==> {directory / METRICS} <==", *map(_figures, metrics)]))


def _find(what: str) -> Path:
    """Return the directory whose logs `what` means: the one with the newest log."""
    from cloze.core.errors import DataError, did_you_mean
    from cloze.core.stages.worker import LOGS, local_directory
    from cloze.flows.graph import plan, stages

    given = local_directory(what)
    if given.is_dir() and any((given / LOGS).glob("*.log")):
        return given
    runs = plan.runs_directory()
    found = [log for place in _meant(what, runs) for log in (place / LOGS).glob("*.log")]
    newest = max(found, key=lambda log: log.stat().st_mtime_ns, default=None)
    if newest is None:
        nodes = {
            name
            for run in _names(runs)
            for name in (run, *(f"{run}/{node}" for node in _nodes(runs / run)))
        }
        near = did_you_mean(what, {*nodes, *stages.TABLE})
        raise DataError(
            f"{what} has no logs ({LOGS}/ is missing or empty); name a run, a node of one (sample/"
            f"finetune@sst2-1), a stage, or an"
            f" artifact, such as runs/demo/pretrain: {near}"
        )
    return newest.parent.parent


def _meant(what: str, runs: Path) -> list[Path]:
    """Return the directories of a run, of RUN/NODE, or of a node, section or stage in all runs."""
    run, _, node = what.rpartition("/")
    if not run and node in _names(runs):
        return [place for places in _nodes(runs / node).values() for place in places]
    return [
        place
        for name in ([run] if run else sorted(_names(runs)))
        for known, places in _nodes(runs / name).items()
        if known == node
        or known.partition("@")[0] == node
        or ("@" in node and known.startswith(f"{node}-"))
        for place in places
    ]


def _nodes(run: Path) -> dict[str, list[Path]]:
    """Return the artifact directories, `NODE-FINGERPRINT`, of each node of a run."""
    found: dict[str, list[Path]] = {}
    for place in run.glob("*/"):
        name, dash, fingerprint = place.name.rpartition("-")
        if dash and len(fingerprint) == FINGERPRINT and not place.is_symlink():
            found.setdefault(name, []).append(place)
    return found


def _names(runs: Path) -> set[str]:
    return {place.name for place in runs.glob("*/") if not place.name.startswith(".")}


def _end(path: Path, lines: int) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]


def _values(line: str) -> dict[str, Any] | None:
    """Return the metrics of a line; None for an incomplete line."""
    try:
        values: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return values


def _figures(line: str) -> str:
    """Return a line of metrics in readable form."""
    from cloze.core.humanize import format_number
    from cloze.flows.views.live import training_line

    values = _values(line)
    if values is None:
        return line
    figures = "  ".join(
        f"{name} {format_number(value)}"
        for name, value in values.items()
        if name not in ("step", "time")
    )
    return training_line(values) or f"step {values.get('step')}  {figures}"
