"""Commands for services and artifacts: `ui`, `deploy`, `doctor`, `verify`, `lineage`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import posixpath
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from cloze.core import processes, storage
from cloze.core.artifacts import artifact, claim, fingerprints
from cloze.core.artifacts.artifact import Verification
from cloze.core.artifacts.lineage import NearbyArtifacts, containing_artifact
from cloze.core.errors import DataError, UsageError
from cloze.core.humanize import format_bytes, on_one_line, printable
from cloze.core.places import runs_directory
from cloze.core.stages.worker import JOB, LOGS, Job
from cloze.flows.commands.base.field_options import TABLES, Count
from cloze.flows.commands.base.options import Command, complete_targets, emit, json_option
from cloze.flows.run import server_addresses, targets

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

    Removes Cloze's deployments that are no longer in prefect.yaml, keeps what was paused or set in
    Prefect, and prints what it changes. CLOZE_NIGHTLY sets the nightly evaluation, such as
    "30 3 * * * Europe/Berlin". Failed runs are reported to CLOZE_NOTIFY: a webhook URL (such as
    Slack's), TYPE/NAME of a notification block in Prefect, such as sendgrid-email/team, or none.
    """
    from cloze.flows.prefect.environment import prepare_prefect

    prepare_prefect()
    api = api or server_addresses.api(runs_directory())
    from cloze.flows.prefect import deploy as deploying

    deployment = deploying.deploy(api)
    if as_json:
        emit(dataclasses.asdict(deployment))
        return
    count, pool = len(deployment.deployments), deployment.pool
    click.echo(f"{count} deployments at {deployment.api}, work pool {pool}:")
    for name in deployment.deployments:
        click.echo(printable(f"  {name}"))
    for name in deployment.removed:
        click.echo(printable(f"  {name}  removed"))
    for change in deployment.changes:
        click.echo(printable(f"{'kept' if ' stays ' in change else 'changed'}: {change}"))
    click.echo(f"schedules: {', '.join(deployment.schedules) or 'none'}")
    click.echo(printable(f"automations: {'; '.join(deployment.automations)}"))
    kind = deployment.pool_type
    click.echo(
        "A worker runs them: python -m cloze.flows.prefect.worker --pool "
        f"{shlex.quote(pool)} --type {kind}"
    )


@click.command()
@click.option(
    "--fix",
    is_flag=True,
    help="Repair stuck runs, orphaned processes and refused records; leaves processes of others"
    " alone.",
)
@click.option(
    "--launcher",
    type=TABLES["launcher"],
    help="Submit a job, such as by slurm, that reports what it sees, instead of this machine.",
)
@json_option
@click.pass_context
def doctor(ctx: click.Context, fix: bool, launcher: str | None, as_json: bool) -> None:
    """Check this machine and its servers; --fix repairs.

    Checks versions, GPUs, NCCL, disk, servers, stuck runs, slots, orphaned processes, and records
    that MLflow refused.
    Exit code 1: a problem is left.
    """
    from cloze.flows.doctor import launched, machine, runs
    from cloze.flows.doctor.machine import run_check

    if launcher is not None and fix:
        raise click.UsageError("--fix repairs this machine; leave it or --launcher out")
    findings: list[Finding] = []
    every: Iterable[Finding] = (
        each for check in (*machine.CHECKS, *runs.CHECKS) for each in run_check(check, fix)
    )
    if launcher is not None:
        every = launched.checks(launcher, lambda reason: click.echo(reason, err=True))
    for finding in every:
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
    click.echo(f"{mark} {finding.check:<14} {on_one_line(finding.observed)}")
    if not finding.ok and not finding.fixed:
        failed = f" ({finding.failed})" if finding.failed else ""
        click.echo(f"{'':<21}→ {on_one_line(finding.fix + failed)}")


def _port_option(name: str, text: str) -> Callable[[Command], Command]:
    return click.option(name, type=click.IntRange(1, 65535), help=f"{text}, or the next free one.")


@click.command()
@_port_option("--prefect-port", "Port of the Prefect server. Default: 4200")
@_port_option("--mlflow-port", "Port of the MLflow server. Default: 5000")
@_port_option("--dashboard-port", "Port of the dashboard. Default: 8090")
@click.option(
    "--dashboard-only",
    is_flag=True,
    help="Serve the dashboard and Prometheus metrics alone, for teams whose Prefect and MLflow run"
    " elsewhere.",
)
@click.option(
    "--host",
    metavar="ADDRESS",
    help="With --dashboard-only: address to listen on. It has no login. Default: 127.0.0.1.",
)
@click.option(
    "--allowed-hosts",
    metavar="NAMES",
    help="With --dashboard-only: further Host values to accept, comma-separated, such as"
    " dashboard:8090.",
)
@json_option
def ui(
    prefect_port: int | None,
    mlflow_port: int | None,
    dashboard_port: int | None,
    dashboard_only: bool,
    host: str | None,
    allowed_hosts: str | None,
    as_json: bool,
) -> None:
    """Start Prefect, MLflow and the dashboard.

    Also starts a worker that serves the deployments. Ctrl-C ends all. If they already run for this
    runs directory, prints their addresses and exits. Prometheus reads /metrics of the dashboard,
    which shows the runs below CLOZE_RUNS_DIR and changes nothing.
    """
    from cloze.flows.ui.command import serve

    if dashboard_only:
        if prefect_port or mlflow_port:
            raise click.UsageError("--dashboard-only starts neither Prefect nor MLflow; leave out"
                                   " --prefect-port and --mlflow-port")  # fmt: skip
        port = dashboard_port or (8090 if host else None)  # others look there on a named address
        _serve_dashboard(port, host or "127.0.0.1", allowed_hosts or "", as_json)
    elif host or allowed_hosts:
        raise click.UsageError("--host and --allowed-hosts are for --dashboard-only; add it")
    else:
        serve({"page": dashboard_port, "prefect": prefect_port, "mlflow": mlflow_port}, as_json)


def _serve_dashboard(port: int | None, host: str, allowed_hosts: str, as_json: bool) -> None:
    from cloze.flows.ui import services
    from cloze.flows.ui.command import runs_of_home

    port = port or services.choose_port(8090, None, "")
    if not services.is_free(port, host):
        raise UsageError(
            f"--dashboard-port {port} of {host} cannot be listened on; name another port"
        )
    from cloze.flows.ui import dashboard as page

    runs, address = runs_of_home(), services.address(port, host)

    def announce() -> None:
        click.echo(f"Dashboard of {runs}: {address}; Ctrl-C ends it.", err=True)
        click.echo("It has no login: every account that can connect reads the runs.", err=True)
        if as_json:
            emit({"page": address, "runs": str(runs)})

    allowed = [name for name in allowed_hosts.split(",") if name]
    page.serve(runs, port, host, allowed, announce=announce)


@click.command()
@click.argument("target", shell_complete=complete_targets)
@json_option
def lineage(target: str, as_json: bool) -> None:
    """Show what an artifact was made from.

    TARGET is a node (RUN/NODE), or the directory of an artifact or checkpoint. Parents are searched
    near it.
    """
    path = targets.resolve(target).path
    path = path if storage.has_scheme(path) else os.path.realpath(path)
    fingerprint = fingerprints.artifact_fingerprint(path) or fingerprints.part_fingerprint(path)
    tree = lineage_tree(fingerprint or artifact.read_manifest(path).fingerprint, path)
    if as_json:
        emit(tree)
    else:
        print_tree(tree, 0)


def lineage_tree(fingerprint: str, path: str) -> dict[str, Any]:
    """Return the lineage of an artifact, or of a part of one, as a tree.

    `path`: current or former path; ancestors are searched near it.
    """
    return _ancestors(fingerprint, NearbyArtifacts(path))


def _ancestors(fingerprint: str, nearby: NearbyArtifacts) -> dict[str, Any]:
    """Return the metadata of the artifact, or part, with that fingerprint, and of all ancestors."""
    path = nearby.find(fingerprints.artifact_fingerprint_of(fingerprint))
    if path is None:
        return {"fingerprint": fingerprint, "parents": {}}
    subpath = fingerprints.subpath_of(fingerprint)
    row = {"artifact": path, "fingerprint": fingerprint, **({"part": subpath} if subpath else {})}
    if not artifact.is_artifact(path):
        builder, recorded = claim.read(path), dict[str, str]()
        with contextlib.suppress(DataError, OSError):  # just started
            recorded = Job.read(posixpath.join(path, LOGS, JOB)).inputs
        inputs = {
            role: fingerprints.artifact_fingerprint(source) or fingerprints.part_fingerprint(source)
            for role, source in recorded.items()
        }
        parents = {role: _ancestors(parent, nearby) for role, parent in inputs.items() if parent}
        stage = builder.stage if builder else ""
        return {"stage": stage, **row, "unfinished": True, "parents": parents}
    manifest = artifact.read_manifest(path)
    parents = {
        role: _ancestors(parent, nearby) | _source_files(role, manifest.config)
        for role, parent in manifest.parents.items()
    }
    return {"stage": manifest.stage, **row, "created": manifest.created, "parents": parents}


def _source_files(role: str, config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the source files or directories that the config names for a parent."""
    _, prefix, kind = role.partition("source/")
    if prefix:
        sources = [source for source in config.get("sources") or () if source.get("kind") == kind]
        return {"files": [str(source["path"]) for source in sources if source.get("path")]}
    value = config.get(role)
    return {"files": [value]} if isinstance(value, str) else {}


def print_tree(node: Mapping[str, Any], depth: int, role: str = "") -> None:
    """Print the tree, two spaces per level."""
    stage = node.get("stage", "")
    label = f"{role} ({stage})" if role and stage and role != stage else stage or role
    files = ", ".join(node.get("files") or ()) or "(outside)"
    path = "/".join(filter(None, (node.get("artifact", files), node.get("part", ""))))
    mark = "  (unfinished)" if node.get("unfinished") else ""
    width = max(18, 26 - 2 * depth)  # of `source/docstrings`
    line = f"{'  ' * depth}{label:<{width}} {node['fingerprint'][:12]}  {on_one_line(path)}{mark}"
    click.echo(line)
    for parent, child in node["parents"].items():
        print_tree(child, depth + 1, parent)


@click.command()
@click.argument("target", shell_complete=complete_targets)
@click.option(
    "--threads",
    type=Count(min=1),
    metavar="N",
    help="Number of files to read at once. Default: two per core.",
)
@json_option
@click.pass_context
def verify(ctx: click.Context, target: str, threads: int | None, as_json: bool) -> None:
    """Compare artifacts byte by byte with their manifests.

    TARGET is a node (RUN/NODE), the directory of an artifact, or a run or a directory whose
    artifacts are all verified.
    """
    from cloze.flows.views import terminal
    from cloze.flows.views.live import live_lines

    resolved = targets.resolve(target)
    if resolved.is_run:
        paths = list(filter(artifact.is_artifact, filter(storage.has_scheme, resolved.paths)))
        try:
            paths += artifact.find_artifacts(str(runs_directory() / resolved.run))
        except DataError:
            if not paths:  # else all are on a store
                raise
    elif resolved.run:  # a node or section; it may also have unfinished artifacts
        paths = list(filter(artifact.is_artifact, resolved.paths)) or [resolved.path]
    else:
        paths = artifact.find_artifacts(containing_artifact(resolved.path))
    sizes = [artifact.read_manifest(path).size for path in paths]
    results: dict[str, Verification] = {}
    with live_lines(terminal.console()) as progress:
        task = progress.add_task(
            "verify",
            total=sum(sizes),
            count=format_bytes(sum(sizes)),
            unit="B",
            note="",
            began=time.monotonic(),
        )
        for path in paths:
            progress.update(task, note=path)
            results[path] = artifact.verify(
                path,
                threads or 2 * len(processes.available_cpus()),
                lambda count: progress.advance(task, count),
            )
    all_ok = all(result.ok for result in results.values())
    if as_json:
        rows = [
            {"artifact": path, "ok": result.ok, "content_sha256": result.content_sha256,
             "bytes": result.bytes, "errors": list(result.errors)}
            for path, result in results.items()
        ]  # fmt: skip
        emit({"ok": all_ok, "artifacts": rows})
    for path, result in results.items():
        if result.ok and not as_json:
            line = f"{path} matches its manifest, content sha256 {result.content_sha256}"
            click.echo(on_one_line(line))
        for error in result.errors:
            click.echo(on_one_line(f"{path}: {error}"), err=True)
    if not all_ok:
        ctx.exit(3)
