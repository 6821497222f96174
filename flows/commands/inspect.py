"""`cloze status`, `logs`, `verify`, `lineage`: look at what is there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flows.commands.common import json_option

if TYPE_CHECKING:
    from pipeline.core.artifact import Verification


@click.command()
@click.argument("name", required=False)
@json_option
def status(name: str | None, as_json: bool) -> None:
    """Show the runs under ./runs (or $CLOZE_RUNS): each stage, whether it is made, when, and where it lies."""
    from rich.console import Console
    from rich.table import Table

    from flows.cli import emit
    from flows.graph import plan
    from pipeline.core.errors import DataError, did_you_mean
    from pipeline.core.humanize import duration

    runs = plan.runs_directory()
    names = sorted(path.parent.name for path in runs.glob(f"*/{plan.STATE}"))
    if name is not None and name not in names:
        hint = did_you_mean(name, names) if names else "there is none yet"
        raise DataError(f"no run {name!r} in {runs}; {hint}")
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("run", "stage", "state", "made", "took", "artifact"):
        table.add_column(title, overflow="fold")
    found: list[dict[str, Any]] = []
    for run in [name] if name else names:
        for row in _stages(runs / run):
            found.append({"run": run, **row})
            took = duration(row["seconds"]) if row["seconds"] is not None else ""
            table.add_row(run, row["stage"], row["state"], row["made"] or "", took, row["artifact"])
    if as_json:
        emit({"runs": found})
    elif not found:
        Console(highlight=False).print(f"No runs in {runs} yet; start one with `cloze run demo`.")
    else:
        Console(highlight=False).print(table)


def _stages(directory: Path) -> list[dict[str, Any]]:
    """Each stage of a run: finished artifacts that the links lead to, and what is being built."""
    from flows.graph import stages
    from pipeline.core import artifact
    from pipeline.core.claim import BUILDING
    from pipeline.core.lock import is_held

    rows = []
    for stage in stages.TABLE:
        link = directory / stage
        if artifact.is_artifact(str(link)):
            manifest = artifact.read_manifest(str(link))
            rows.append(_row(stage, "finished", manifest.created, manifest.seconds, link.resolve()))
        for begun in sorted(directory.glob(f"{stage}-*/{BUILDING}")):
            state = "running" if is_held(str(begun.parent)) else "interrupted"
            rows.append(_row(stage, state, None, None, begun.parent))
    return rows


def _row(stage: str, state: str, made: str | None, seconds: float | None, place: Path) -> dict[str, Any]:
    return {"stage": stage, "state": state, "made": made, "seconds": seconds, "artifact": str(place)}


@click.command()
@click.argument("path")
@click.option("--lines", type=click.IntRange(min=1), default=50, show_default=True, help="Last lines of each log.")
def logs(path: str, lines: int) -> None:
    """Print the end of the logs of the stage at PATH."""
    from flows.graph.launch import LOGS, local_directory
    from pipeline.core.errors import DataError

    directory = local_directory(path) / LOGS
    found = sorted(directory.glob("*.log"))
    if not found:
        raise DataError(
            f"{path} has no logs ({LOGS}/ is missing or empty); name a stage's artifact, such as runs/demo/pretrain"
        )
    for log in found:
        click.echo(f"==> {log} <==")
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]:
            click.echo(line)


@click.command()
@click.argument("path")
@click.option("--threads", type=click.IntRange(min=1), help="Files read at once.  [default: two a core]")
@json_option
@click.pass_context
def verify(ctx: click.Context, path: str, threads: int | None, as_json: bool) -> None:
    """Read every file of the artifact at PATH, or of all artifacts below it, again, and compare it with the manifest."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from flows.cli import emit
    from flows.views import terminal
    from pipeline.core import artifact
    from pipeline.core.fingerprints import combine

    places = artifact.find_artifacts(path)
    sizes = [sum(entry.size for entry in artifact.read_manifest(place).files) for place in places]
    found: dict[str, artifact.Verification] = {}
    columns = (
        TextColumn("[bold cyan]verify"),
        BarColumn(bar_width=28),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("[dim]{task.description}"),
    )
    screen = terminal.console()
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task("", total=sum(sizes))
        for place in places:
            progress.update(task, description=place)
            found[place] = artifact.verify(
                place, threads or 2 * (os.cpu_count() or 1), lambda count: progress.advance(task, count)
            )
    whole = all(one.ok for one in found.values())
    if as_json:
        emit(_verdict(found, combine))
    elif whole:
        for place, one in found.items():
            click.echo(f"{place} is whole, content sha256 {one.content_sha256}")
    if not whole:
        for place, one in found.items():
            for error in one.errors:
                click.echo(f"{place}: {error}", err=True)
        ctx.exit(3)


def _verdict(found: Mapping[str, Verification], combine: Callable[[Iterable[tuple[str, str]]], str]) -> dict[str, Any]:
    """The object of `--json`: of one artifact, or of several with each of them below `artifacts`."""
    if len(found) == 1:
        [one] = found.values()
        return {"ok": one.ok, "content_sha256": one.content_sha256, "errors": list(one.errors), "bytes": one.bytes}
    return {
        "ok": all(one.ok for one in found.values()),
        "content_sha256": combine((place, one.content_sha256) for place, one in found.items()),
        "errors": [f"{place}: {error}" for place, one in found.items() for error in one.errors],
        "bytes": sum(one.bytes for one in found.values()),
        "artifacts": {place: {"ok": one.ok, "content_sha256": one.content_sha256} for place, one in found.items()},
    }


@click.command()
@click.argument("path")
@json_option
def lineage(path: str, as_json: bool) -> None:
    """Show what the artifact at PATH was made from, as far as its parents are beside it."""
    from flows.cli import emit
    from pipeline.core import artifact

    neighbours = {}
    for other in sorted(Path(path).resolve().parent.glob(f"*/{artifact.MANIFEST}")):
        if not other.parent.is_symlink():
            neighbours[artifact.read_manifest(str(other.parent)).fingerprint] = str(other.parent)
    tree = _ancestors(path, neighbours)
    if as_json:
        emit(tree)
    else:
        _print_tree(tree, 0)


def _ancestors(path: str, neighbours: dict[str, str]) -> dict[str, Any]:
    from pipeline.core import artifact

    manifest = artifact.read_manifest(path)
    parents = {}
    for name, fingerprint in manifest.parents.items():
        place = neighbours.get(fingerprint)
        parents[name] = _ancestors(place, neighbours) if place else {"fingerprint": fingerprint, "parents": {}}
    return {
        "stage": manifest.stage, "artifact": path, "fingerprint": manifest.fingerprint, "created": manifest.created, "parents": parents
    }  # fmt: skip


def _print_tree(node: dict[str, Any], depth: int, name: str = "") -> None:
    label = node.get("stage", name)
    click.echo(
        f"{'  ' * depth}{label:<{18 - 2 * min(depth, 5)}} {node['fingerprint'][:12]}  {node.get('artifact', '(outside)')}"
    )
    for parent, child in node["parents"].items():
        _print_tree(child, depth + 1, parent)
