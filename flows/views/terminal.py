"""What a person sees of stages that are planned or made: lines and tables that fit 80 columns. They go to standard error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from flows.graph.plan import Step
from flows.graph.stages import headline
from pipeline.core.execute import Result
from pipeline.core.humanize import duration


def console() -> Console:
    return Console(stderr=True, highlight=False)


def done_line(result: Result) -> str:
    how = "cached" if result.cached else duration(result.seconds)
    return f"[green]✓[/] [bold]{result.manifest.stage:<9}[/] {how:>12}  {headline(result.manifest)}"


def table_of(columns: Sequence[str], right: Sequence[str] = (), title: str | None = None) -> Table:
    """An empty table in the one style that all have; the columns named in `right` hold numbers."""
    table = Table(box=None, header_style="bold", pad_edge=False, title=title, title_justify="left", title_style="dim")
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


def result_table(results: Iterable[Result]) -> Table:
    """Stage, time, rows, result, and the link that leads to the artifact."""
    table = table_of(("stage", "time", "rows", "result", "artifact"), right=("time", "rows"))
    for result in results:
        manifest = result.manifest
        spent = f"cached ({duration(manifest.seconds)})" if result.cached else duration(manifest.seconds)
        rows = f"{manifest.rows:,}" if manifest.rows else ""
        table.add_row(manifest.stage, spent, rows, headline(manifest), str(Path(result.artifact).parent / manifest.stage))
    return table


def plan_table(steps: Sequence[Step]) -> Table:
    """What would run and why; the artifacts by their names in the run's directory, which the title names."""
    place = str(Path(steps[0].artifact).parent) if steps else None
    table = table_of(("stage", "what", "why", "last time", "artifact"), right=("last time",), title=place)
    for step in steps:
        last = duration(step.last_seconds) if step.last_seconds is not None else "–"
        what = "[dim]nothing to do[/]" if step.cached else "[bold yellow]run[/]"
        table.add_row(step.name, what, step.why, last, Path(step.artifact).name)
    return table


def status_table(place: str, rows: Iterable[Mapping[str, Any]]) -> Table:
    """A run's stages; the artifacts by their names in the run's directory, which the title names.

    Args:
        rows: `stage`, `state`, `made` (ISO 8601), `seconds` and `artifact` of each.
    """
    table = table_of(("stage", "state", "made", "took", "artifact"), right=("took",), title=place)
    for row in rows:
        made = (row["made"] or "").replace("T", " ")[:16]  # to the minute
        took = duration(row["seconds"]) if row["seconds"] is not None else ""
        table.add_row(row["stage"], row["state"], made, took, Path(row["artifact"]).name)
    return table
