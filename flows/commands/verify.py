"""`cloze verify`: every byte of an artifact compared with its manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from flows.commands.common import emit, json_option
from pipeline.core import processors

if TYPE_CHECKING:
    from pipeline.core.artifact import Verification


@click.command()
@click.argument("path")
@click.option("--threads", type=click.IntRange(min=1), help="Files read at once.  [default: two a core]")
@json_option
@click.pass_context
def verify(ctx: click.Context, path: str, threads: int | None, as_json: bool) -> None:
    """Read every file of the artifact at PATH, or of all artifacts below it, again, and compare it with the manifest."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

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
                place, threads or 2 * len(processors.usable()), lambda count: progress.advance(task, count)
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
