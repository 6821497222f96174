"""`cloze doctor`: is this machine fit, is all well with what runs on it, and what can be mended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flows.commands.common import emit, json_option

if TYPE_CHECKING:
    from flows.doctor.finding import Finding


@click.command()
@click.option(
    "--fix",
    is_flag=True,
    help="Mend what can be mended: stuck runs, orphans, refused records. Nothing that is not ours is touched.",
)
@json_option
@click.pass_context
def doctor(ctx: click.Context, fix: bool, as_json: bool) -> None:
    """Check versions, GPUs, NCCL, disk, servers, stuck runs, slots, orphaned processes, and records that MLflow refused.

    Ends with exit code 1 if something is bad and not mended.
    """
    from flows.doctor import machine, runs
    from flows.doctor.finding import examine

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
        for finding in examine(check, fix):
            findings.append(finding)
            if not as_json:
                _show(finding)
    well = all(finding.ok or finding.fixed for finding in findings)
    if as_json:
        emit({"ok": well, "checks": [finding.row() for finding in findings]})
    elif any(finding.mend is not None and not finding.ok for finding in findings) and not fix:
        click.echo("\n`cloze doctor --fix` mends what is marked with a star.")
    if not well:
        ctx.exit(1)


def _show(finding: Finding) -> None:
    if finding.ok:
        mark = click.style("ok   ", fg="green")
    elif finding.fixed:
        mark = click.style("fixed", fg="green")
    else:
        mark = click.style("bad* " if finding.mend is not None else "bad  ", fg="red")
    click.echo(f"{mark} {finding.check:<14} {finding.found}")
    if not finding.ok and not finding.fixed:
        failed = f" ({finding.failed})" if finding.failed else ""
        click.echo(f"{'':<21}→ {finding.fix}{failed}")
