"""Commands that show and control runs: `status`, `logs`, `cancel` and `resume`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from cloze.core import accounts, storage
from cloze.core.errors import DataError, UsageError, shell_command
from cloze.core.humanize import agree, printable
from cloze.core.places import runs_directory
from cloze.core.records import read_record
from cloze.core.stages.stage import METRICS_LOG
from cloze.flows.commands.base.options import GroupedCommand, complete_targets, emit, json_option
from cloze.flows.commands.base.stage_command import (
    OF_EXECUTION,
    StageArguments,
    parallel_fields,
    pop_prefixed,
    run_stage,
)
from cloze.flows.commands.run import PREFECT

if TYPE_CHECKING:
    from cloze.flows.run.session import RunParameters

METRIC_LINES = 10  # maximum number of log entries shown by `cloze logs`
TRAININGS = ("pretrain", "finetune")  # stages that `cloze resume` continues


@click.command()
@click.argument("target", required=False, shell_complete=complete_targets)
@click.option("--mine", is_flag=True, help="Only runs that you own or have started last.")
@json_option
def status(target: str | None, mine: bool, as_json: bool) -> None:
    """List all runs, or show the progress of one run.

    Runs and the artifacts that commands make are in ./runs, or in $CLOZE_RUNS_DIR. TARGET is a
    run, a node, or the directory of an artifact.
    """
    from cloze.core.artifacts.lineage import containing_artifact
    from cloze.flows.run import status_file, targets
    from cloze.flows.views import run_tables, terminal

    runs, out = runs_directory(), terminal.output()
    if target is not None and mine:
        raise UsageError("--mine is for the list of runs; leave out --mine or TARGET")
    if target is not None:
        resolved = targets.resolve(target)
        name = resolved.run or containing_artifact(resolved.path)
        record = status_file.read(runs, name)
        if resolved.node:
            nodes = record["nodes"]
            record["nodes"] = {node: nodes[node] for node in resolved.nodes if node in nodes}
        if as_json:
            emit({"runs": [_row(record)]})
        else:
            run_tables.show_run(out, str(status_file.directory_of(runs, name)), record)
        return
    records = {**status_file.command_records(runs), **status_file.all_records(runs)}
    others = 0
    if mine:
        own = accounts.user_name()
        kept = {
            name: each for name, each in records.items()
            if own in (each.get("owner"), each.get("account"))
        }  # fmt: skip
        others, records = len(records) - len(kept), kept
    if as_json:
        counts = {"others": others} if mine else {}
        emit({"runs": [_row(record) for record in records.values()], **counts})
    elif not records and not others:
        out.print(f"No runs in {runs} yet. Start one with `cloze run demo`.", markup=False)
    else:
        run_tables.show_runs(out, records)
        if others:
            out.print(f"Not shown: {agree(f'{others} runs')} of others.", markup=False)


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    hidden = ("config", "parameters", "begun")
    return {key: value for key, value in record.items() if key not in hidden}


@click.command()
@click.argument("target", shell_complete=complete_targets)
@click.option(
    "--lines",
    metavar="N",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Last lines of each log.",
)
@json_option
def logs(target: str, lines: int, as_json: bool) -> None:
    """Show the logs of a run, node, stage or artifact.

    TARGET is a run, a node (RUN/NODE, such as sample/finetune@sst2-1), a stage, or the directory of
    an artifact. Of several artifacts, the one with the newest log is shown.
    """
    from cloze.core.stages.worker import LOGS, local_directory

    path = _newest_logs(target)
    log_files = sorted((local_directory(path) / LOGS).glob("*.log"))
    ends = {log: _end(str(log), lines) for log in log_files}
    metrics_file = storage.join(path, METRICS_LOG)
    metrics = _end(metrics_file, min(lines, METRIC_LINES)) if storage.exists(metrics_file) else []
    if as_json:
        files = [{"file": str(log), "lines": end} for log, end in ends.items()]
        emit({"logs": files, "metrics": list(filter(None, map(read_record, metrics)))})
        return
    for log, end in ends.items():
        click.echo(printable("\n".join([f"==> {log} <==", *end])))
    if metrics:
        lines_of = [f"==> {metrics_file} <==", *map(_format_metrics, metrics)]
        click.echo(printable("\n".join(lines_of)))


def _newest_logs(text: str) -> str:
    """Return the artifact with the newest log, of those that a TARGET names."""
    from cloze.core.artifacts.lineage import containing_artifact
    from cloze.core.stages.worker import LOGS, local_directory
    from cloze.flows.run import targets

    resolved = targets.resolve(text, in_any_run=True)
    mtimes = [
        (log.stat().st_mtime_ns, path)
        for path in map(containing_artifact, resolved.paths)
        for log in (local_directory(path) / LOGS).glob("*.log")
    ]
    if not mtimes:
        shown = shell_command("status", resolved.run) if resolved.run else "`cloze status`"
        raise DataError(f"{text} has no logs yet ({LOGS}/*.log); see {shown}")
    return max(mtimes)[1]


def _end(path: str, lines: int) -> list[str]:

    return storage.read_at_once(path).decode(errors="replace").splitlines()[-lines:]


def _format_metrics(line: str) -> str:
    """Return a line of metrics in readable form."""
    from cloze.core.humanize import format_number
    from cloze.flows.views.live import training_line

    values = read_record(line)
    if values is None:
        return line
    numbers = {name: values[name] for name in values if name not in ("step", "time")}
    metrics = "  ".join(f"{name} {format_number(value)}" for name, value in numbers.items())
    return training_line(values) or f"step {values.get('step')}  {metrics}"


@click.command()
@click.argument("target", shell_complete=complete_targets)
@json_option
def cancel(target: str, as_json: bool) -> None:
    """Stop a run or a stage; trainings save a checkpoint.

    TARGET is a run that was started on this machine; or the directory of an unfinished artifact,
    or a node, started by any launcher on any machine. `cloze resume TARGET` continues a run or a
    training; the same command again continues any other stage.
    """
    from cloze.core.artifacts.lineage import containing_artifact
    from cloze.flows.run import targets

    resolved = targets.resolve(target)
    if resolved.is_run:
        _cancel_run(
            resolved.run, as_json, f"Continue with {shell_command('resume', resolved.run)}."
        )
    else:
        _cancel_artifact(containing_artifact(resolved.path), as_json)


def _cancel_artifact(path: str, as_json: bool) -> None:
    from cloze.flows.launch import cancel_requests, coordinator
    from cloze.flows.run import status_file

    record = status_file.newest(status_file.directory_of(runs_directory(), path))
    launch = coordinator.unattended(path)
    is_queued = record is not None and record["state"] == status_file.RUNNING and launch is None
    if is_queued and cancel_requests.holder(path) is None:  # the command waits for a GPU
        _cancel_run(path, as_json, _how_to_continue(path))
        return
    result = cancel_requests.cancel(path, _note) if launch is None else launch.cancel(_note)
    if as_json:
        emit(result)
    else:
        saved = f"; saved {result['checkpoint']}" if result["checkpoint"] else ""
        click.echo(printable(f"{path}: {result['state']}{saved}. {_how_to_continue(path)}"))


def _how_to_continue(path: str) -> str:
    from cloze.core.stages.worker import JOB, LOGS, Job

    job_file = storage.join(path, LOGS, JOB)
    if storage.exists(job_file) and Job.read(job_file).stage in TRAININGS:
        return f"Continue with {shell_command('resume', path)}."
    return "Continue with the same command."


def _cancel_run(name: str, as_json: bool, remedy: str) -> None:
    from cloze.flows.run import cancellation, status_file

    record = cancellation.cancel(runs_directory(), name, _note)
    nodes, stop_states = record["nodes"], (status_file.STOPPED, status_file.CRASHED)
    stopped = [node for node in nodes if nodes[node]["state"] in stop_states]
    if as_json:
        emit({"run": name, "state": record["state"], "stopped": stopped})
    else:
        click.echo(printable(f"{name}: {record['state']}. {remedy}"))


def _note(text: str) -> None:
    from cloze.flows.views import terminal

    terminal.console().print(text, markup=False, soft_wrap=True)


# --processes without one of these means this machine alone
ALONE = {"launcher": "local", "nodes": 1}


class _Resume(GroupedCommand):
    """Command that adds the execution options of a training on first use."""

    def all_params(self) -> list[click.Parameter]:
        from cloze.flows.commands.base.field_options import execution_options

        return [*self.params, *execution_options(OF_EXECUTION, "", parallel_fields().__contains__)]


@click.command(cls=_Resume)
@click.argument("target", shell_complete=complete_targets)
@click.option(
    "--current-source",
    is_flag=True,
    help="Take today's files of Cloze. Default: those that the run was started with.",
)
@PREFECT
@json_option
def resume(
    target: str, current_source: bool, prefect: bool | None, as_json: bool, **options: Any
) -> None:
    """Continue an interrupted or failed run or training.

    TARGET is a run, whose failed nodes and those that depend on them are built; or a node or the
    directory of a training, which continues from its newest checkpoint. Options replace the
    recorded settings of all nodes; --processes without --launcher, --hostfile or --nodes means this
    machine alone.
    """
    from cloze.core.artifacts.lineage import containing_artifact
    from cloze.flows.run import source, targets

    changes = pop_prefixed(options, OF_EXECUTION)
    if "processes" in changes and not changes.keys() & {"launcher", "hostfile", "nodes"}:
        changes |= ALONE
    resolved = targets.resolve(target)
    if not current_source:
        source.enter(resolved, runs_directory())
    if resolved.is_run:
        _resume_run(resolved.run, changes, prefect, as_json)
    else:
        _resume_training(containing_artifact(resolved.path), changes, as_json)


def _resume_run(name: str, changes: Mapping[str, Any], prefect: bool | None, as_json: bool) -> None:
    from cloze.core.stages.execution import without_other_launchers
    from cloze.flows.commands.run import start
    from cloze.flows.graph.config import NAME, RunConfig
    from cloze.flows.run import status_file
    from cloze.flows.run.node_reporter import StartedNodes
    from cloze.flows.run.session import RunParameters, RunSession

    record, started = status_file.read(runs_directory(), name), StartedNodes()
    if record["state"] == status_file.UNREADABLE:
        raise DataError(f"run {name}: {record['error']}")
    started.fingerprints.update(record.get("begun", ()))  # these are not forced again
    parameters = RunParameters.model_validate(record["parameters"])
    if "begun" not in record:  # an earlier version of Cloze wrote it
        parameters = parameters.model_copy(update={"start_from": [], "force": []})
    values = _with_secrets(name, record["config"], parameters)
    if changes:
        values = {key: _with_run_changes(section, changes) for key, section in values.items()}
        run = without_other_launchers(values.get("run") or {}, changes.get("launcher"))
        values["run"] = {**run, **changes}
    # its directory may have been renamed, and to a name that no config may give
    config = RunConfig({**values, NAME: name}, name, is_there=True)
    session = RunSession(parameters, started_nodes=started, config=config)
    start(session, prefect=prefect, as_json=as_json)


def _with_run_changes(section: Any, changes: Mapping[str, Any]) -> Any:
    """Return a section whose own execution settings leave those in `changes` to the run's."""
    from cloze.core.stages.execution import without_other_launchers

    run = section.get("run") if isinstance(section, Mapping) else None
    if not isinstance(run, Mapping):
        return section
    run = without_other_launchers(run, changes.get("launcher"))
    return {**section, "run": {key: value for key, value in run.items() if key not in changes}}


def _with_secrets(
    name: str, recorded: Mapping[str, Any], parameters: RunParameters
) -> Mapping[str, Any]:
    """Return the config of a run with its secrets, which the record lacks, read from their source.

    Raises UsageError: the source has changed or lacks the secrets.
    """
    from cloze.core.secrets import REDACTED, redact
    from cloze.flows.graph import config as configs

    recorded_json = json.dumps(recorded)
    if REDACTED not in recorded_json:
        return recorded
    source = parameters.config
    values = configs.load(source, parameters.overrides).values
    if json.dumps(redact(values)) != recorded_json or json.dumps(values) == recorded_json:
        raise UsageError(
            f"the record of run {name} does not contain its secrets (they are {REDACTED}), and"
            f" {source} has changed since the run started; start it again with"
            f" {shell_command('run', source)} and the same options"
        )
    return values


def _resume_training(path: str, changes: Mapping[str, Any], as_json: bool) -> None:
    from cloze.core.artifacts import artifact, claim
    from cloze.core.stages.execution import without_other_launchers
    from cloze.core.stages.worker import JOB, LOGS, Job
    from cloze.flows.graph import stages

    job_file = storage.join(path, LOGS, JOB)
    job = Job.read(job_file) if storage.exists(job_file) else None
    manifest = artifact.find_manifest(path)
    stage = manifest.stage if manifest is not None else job and job.stage
    if stage is not None and stage not in TRAININGS:
        raise DataError(
            f"{path} is the artifact of a {stage}; resume takes a run, or the directory of a"
            " training"
        )
    if job is None:
        start = f"cloze pretrain{' --continue' if manifest is not None else ''}"
        raise DataError(
            f"{path} has no training to continue ({LOGS}/{JOB} is missing); start one with"
            f" `{start}`"
        )
    claim.check_version(claim.read(path), path, str(stages.stage(job.stage).version))
    recorded = without_other_launchers(job.execution, changes.get("launcher"))
    execution = {**recorded, **changes}
    if "processes" in changes and "gpu_ids" not in changes:
        execution.pop("gpu_ids", None)  # those that were free at the earlier start
    arguments = StageArguments(
        stage=job.stage,
        config=job.config,
        inputs=job.inputs,
        execution=execution,
        out=path,
        as_json=as_json,
    )
    run_stage(arguments)
