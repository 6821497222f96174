"""`cloze deploy`: all deployments of prefect.yaml, their work pool and automations, on a Prefect server."""

from __future__ import annotations

import dataclasses

import click

from flows.commands.common import emit, json_option


@click.command()
@click.option(
    "--api", metavar="URL", help="API of the Prefect server; without it PREFECT_API_URL, or the server of `cloze ui`."
)
@json_option
def deploy(api: str | None, as_json: bool) -> None:
    """Send the deployments to Prefect. Deployments and schedules that prefect.yaml has no more are removed; twice changes nothing.

    Failed runs are told where CLOZE_NOTIFY says: a webhook's URL (Slack's, too), or TYPE/NAME of a notification block in Prefect, such as
    sendgrid-email/team.
    """
    from flows.commands.run import prepare_prefect
    from flows.graph import addresses, plan

    prepare_prefect()
    api = api or addresses.api(plan.runs_directory())
    from flows.prefect import deploy as deploying

    done = deploying.deploy(api)
    if as_json:
        emit(dataclasses.asdict(done))
        return
    click.echo(f"{len(done.deployments)} deployments at {done.api}, work pool {done.pool}:")
    for name in done.deployments:
        click.echo(f"  {name}")
    for name in done.removed:
        click.echo(f"  {name}  removed")
    click.echo(f"schedules: {', '.join(done.schedules) or 'none'}")
    click.echo(f"automations: {'; '.join(done.automations)}")
    click.echo(f"A worker runs them: prefect worker start --pool {done.pool} --type process")
