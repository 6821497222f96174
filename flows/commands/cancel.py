"""`cloze cancel`: end a run, or a single training, from another terminal; trainings save a checkpoint."""

from __future__ import annotations

from pathlib import Path

import click

from flows.commands.common import emit, json_option


@click.command()
@click.argument("what")
@json_option
def cancel(what: str, as_json: bool) -> None:
    """End WHAT: a run that was started on this machine, or the directory of an artifact that is being made, whichever launcher and
    whichever machine started it; `cloze resume WHAT` goes on with it.
    """
    from flows.graph import plan, record

    runs = plan.runs_directory()
    if "/" in what or (record.newest(runs / what) is None and Path(what).is_dir()):
        _cancel_artifact(what, as_json)
    else:
        _cancel_run(runs, what, as_json)


def _cancel_artifact(path: str, as_json: bool) -> None:
    from flows.launchers import cancelling, slurm

    def told(line: str) -> None:
        click.echo(line, err=True)

    job = slurm.unattended(path)
    found = cancelling.cancel(path, told) if job is None else slurm.cancel(path, job, told)
    if as_json:
        emit(found)
    else:
        kept = f"; {found['checkpoint']} is saved" if found["checkpoint"] else ""
        click.echo(f"{path} is {found['state']}{kept}; go on with `cloze resume {path}`")


def _cancel_run(runs: Path, run: str, as_json: bool) -> None:
    from flows.graph import cancel as ending

    found = ending.cancel(runs, run, lambda line: click.echo(line, err=True))
    stopped = [name for name, node in found["nodes"].items() if node["state"] in ("stopped", "crashed")]
    if as_json:
        emit({"run": run, "state": found["state"], "stopped": stopped})
    else:
        click.echo(f"{run} is {found['state']}; go on with `cloze resume {run}`")
