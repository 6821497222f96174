"""`cloze status`: the runs that are there, and how far each stage of them is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flows.commands.common import emit, json_option


@click.command()
@click.argument("name", required=False)
@json_option
def status(name: str | None, as_json: bool) -> None:
    """Show the runs under ./runs (or $CLOZE_RUNS): each stage, whether it is made, when, and where it lies."""
    from rich.console import Console

    from flows.graph import plan
    from flows.views.terminal import status_table
    from pipeline.core.errors import DataError, did_you_mean

    runs = plan.runs_directory()
    names = sorted(path.parent.name for path in runs.glob(f"*/{plan.STATE}"))
    if name is not None and name not in names:
        hint = did_you_mean(name, names) if names else "there is none yet"
        raise DataError(f"no run {name!r} in {runs}; {hint}")
    found = {run: _stages(runs / run) for run in ([name] if name else names)}
    out = Console(highlight=False)
    if as_json:
        emit({"runs": [{"run": run, **row} for run, rows in found.items() for row in rows]})
    elif not found:
        out.print(f"No runs in {runs} yet; start one with `cloze run demo`.")
    else:
        for run, rows in found.items():
            out.print(status_table(str(runs / run), rows))


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
