"""`cloze cancel`: end a run from another terminal; its trainings save a checkpoint."""

from __future__ import annotations

import click

from flows.commands.common import emit, json_option


@click.command()
@click.argument("run")
@json_option
def cancel(run: str, as_json: bool) -> None:
    """End the run RUN, wherever it was started on this machine; `cloze resume RUN` goes on with it."""
    from flows.graph import cancel as ending
    from flows.graph import plan

    found = ending.cancel(plan.runs_directory(), run, lambda line: click.echo(line, err=True))
    stopped = [name for name, node in found["nodes"].items() if node["state"] in ("stopped", "crashed")]
    if as_json:
        emit({"run": run, "state": found["state"], "stopped": stopped})
    else:
        click.echo(f"{run} is {found['state']}; go on with `cloze resume {run}`")
