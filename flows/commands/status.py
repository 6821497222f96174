"""`cloze status`: the runs that are there, and how far each node of them is."""

from __future__ import annotations

from typing import Any

import click

from flows.commands.common import emit, json_option


@click.command()
@click.argument("name", required=False)
@json_option
def status(name: str | None, as_json: bool) -> None:
    """Show the runs under ./runs (or $CLOZE_RUNS), or of one run NAME each node: its state, how far it is, and what came of it."""
    from rich.console import Console

    from flows.graph import plan, record
    from flows.views import status as views

    runs = plan.runs_directory()
    out = Console(highlight=False)
    if name is not None:
        found = record.read(runs, name)
        if as_json:
            emit({"runs": [_row(found)]})
        else:
            views.show_run(out, str(runs / name), found)
        return
    everything = record.all_records(runs)
    if as_json:
        emit({"runs": [_row(found) for found in everything.values()]})
    elif not everything:
        out.print(f"No runs in {runs} yet; start one with `cloze run demo`.")
    else:
        views.show_runs(out, everything)


def _row(found: dict[str, Any]) -> dict[str, Any]:
    from flows.graph.estimate import off_of

    return {**{key: value for key, value in found.items() if key not in ("config", "parameters")}, "off": off_of(found)}
