"""Commands for services: `deploy`, `doctor`, `ui` and `dashboard`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from cloze.flows.commands.base.options import emit, json_option

if TYPE_CHECKING:
    from cloze.flows.doctor.machine import Finding


@click.command()
@click.option(
    "--api",
    metavar="URL",
    help="API of the Prefect server. Default: PREFECT_API_URL, or the server of `cloze ui`.",
)
@json_option
def deploy(api: str | None, as_json: bool) -> None:
    """Register the deployments and schedules in Prefect.

    Removes deployments and schedules that are no longer in prefect.yaml. Failed runs are reported
    to CLOZE_NOTIFY: a webhook URL (such as Slack's), or TYPE/NAME of a notification block in
    Prefect, such as sendgrid-email/team.
    """
    from cloze.flows.graph import plan
    from cloze.flows.prefect.environment import prepare_prefect
    from cloze.flows.run import server_addresses

    prepare_prefect()
    api = api or server_addresses.api(plan.runs_directory())
    from cloze.flows.prefect import deploy as deploying

    deployment = deploying.deploy(api)
    if as_json:
        emit(dataclasses.asdict(deployment))
        return
    click.echo(
        f"{len(deployment.deployments)} deployments at {deployment.api}, work pool "
        f"{deployment.pool}:"
    )
    for name in deployment.deployments:
        click.echo(f"  {name}")
    for name in deployment.removed:
        click.echo(f"  {name}  removed")
    click.echo(f"schedules: {', '.join(deployment.schedules) or 'none'}")
    click.echo(f"automations: {'; '.join(deployment.automations)}")
    click.echo(f"A worker runs them: prefect worker start --pool {deployment.pool} --type process")


@click.command()
@click.option(
    "--fix",
    is_flag=True,
    help=(
        "Repair stuck runs, orphaned processes and refused records; leaves processes of others "
        "alone."
    ),
)
@json_option
@click.pass_context
def doctor(ctx: click.Context, fix: bool, as_json: bool) -> None:
    """Check this machine and its servers; --fix repairs.

    Checks versions, GPUs, NCCL, disk, servers, stuck runs, slots, orphaned processes, and records
    that MLflow refused.
    Exit code 1: a problem is left.
    """
    from cloze.flows.doctor import machine, runs
    from cloze.flows.doctor.machine import run_check

    checks = (
        machine.python,
        machine.packages,
        machine.compiler,
        machine.processor,
        machine.devices,
        machine.disk,
        runs.servers,
        runs.orphans,
        runs.stuck,
        runs.held_slots,
        runs.refused_records,
    )
    findings: list[Finding] = []
    for check in checks:
        for finding in run_check(check, fix):
            findings.append(finding)
            if not as_json:
                _show(finding)
    all_ok = all(finding.ok or finding.fixed for finding in findings)
    if as_json:
        emit({"ok": all_ok, "checks": [finding.row() for finding in findings]})
    elif any(finding.repair is not None and not finding.ok for finding in findings) and not fix:
        click.echo("\n`cloze doctor --fix` repairs what is marked with a star.")
    if not all_ok:
        ctx.exit(1)


def _show(finding: Finding) -> None:
    if finding.ok:
        mark = click.style("ok   ", fg="green")
    elif finding.fixed:
        mark = click.style("fixed", fg="green")
    else:
        mark = click.style("bad* " if finding.repair is not None else "bad  ", fg="red")
    click.echo(f"{mark} {finding.check:<14} {finding.found}")
    if not finding.ok and not finding.fixed:
        failed = f" ({finding.failed})" if finding.failed else ""
        click.echo(f"{'':<21}→ {finding.fix}{failed}")


PORT = click.IntRange(1, 65535)


@click.command()
@click.option(
    "--prefect-port",
    type=PORT,
    help="Port of the Prefect server. Default: 4200, or the next free one.",
)
@click.option(
    "--mlflow-port",
    type=PORT,
    help="Port of the MLflow server. Default: 5000, or the next free one.",
)
@click.option(
    "--dashboard-port",
    type=PORT,
    help="Port of the dashboard. Default: 8090, or the next free one.",
)
@json_option
def ui(
    prefect_port: int | None, mlflow_port: int | None, dashboard_port: int | None, as_json: bool
) -> None:
    """Start Prefect, MLflow and the dashboard.

    Also starts a worker that serves the deployments. Ctrl-C ends all. If they already run for this
    runs directory, prints their addresses and exits.
    """
    from cloze.flows.ui.command import serve

    serve({"page": dashboard_port, "prefect": prefect_port, "mlflow": mlflow_port}, as_json)


@click.command()
@click.option("--port", type=PORT, default=8090, show_default=True, help="Port to listen on.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on. It has no login."
)
@click.option(
    "--allowed-hosts",
    metavar="NAMES",
    default="",
    help="Further Host values to accept, comma-separated, such as dashboard:8090.",
)
def dashboard(port: int, host: str, allowed_hosts: str) -> None:
    """Serve the dashboard and Prometheus metrics of a runs directory.

    For teams whose Prefect and MLflow run elsewhere; `cloze ui` serves the same beside its servers.
    Prometheus reads /metrics. The page shows the runs below CLOZE_RUNS_DIR and changes nothing.
    """
    from cloze.core.errors import UsageError, require_packages
    from cloze.flows.ui import services
    from cloze.flows.ui.command import runs_of_home

    require_packages("starlette", "prometheus_client")
    if not services.is_free(port, host):
        raise UsageError(f"--port {port} of {host} cannot be listened on; name another port")
    from cloze.flows.ui import dashboard as page

    runs = runs_of_home()
    click.echo(f"Dashboard of {runs}: {services.address(port, host)}; Ctrl-C ends it.", err=True)
    page.serve(runs, port, host, [name for name in allowed_hosts.split(",") if name])
