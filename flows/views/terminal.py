"""What a person sees of stages that are planned or made: lines and tables that fit 80 columns. They go to standard error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.graph.plan import Step
from flows.graph.stages import headline
from pipeline.core.execute import Result
from pipeline.core.humanize import duration


def console() -> Console:
    return Console(stderr=True, highlight=False)


def done_line(result: Result, name: str | None = None) -> str:
    """Args: name: of the node; without it, the stage's."""
    how = "cached" if result.cached else duration(result.seconds)
    return f"[green]✓[/] [bold]{name or result.manifest.stage:<9}[/] {how:>12}  {headline(result.manifest)}"


def table_of(columns: Sequence[str], right: Sequence[str] = (), title: str | None = None, whole: bool = False) -> Table:
    """An empty table in the one style that all have; the columns named in `right` hold numbers.

    Args:
        whole: every row takes one line: the last column gives way, whose cells are `cut`.
    """
    table = Table(box=None, header_style="bold", pad_edge=False, title=title, title_justify="left", title_style="dim")
    for name in columns:
        fixed = whole and name != columns[-1]
        table.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=fixed)
    return table


def cut(text: str) -> Text:
    """Text that is cut off where its column ends."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def result_table(results: Mapping[str, Result]) -> Table:
    """Node, time, rows, result, and the link that leads to the artifact."""
    table = table_of(("node", "time", "rows", "result", "artifact"), right=("time", "rows"))
    for name, result in results.items():
        manifest = result.manifest
        spent = f"cached ({duration(manifest.seconds)})" if result.cached else duration(manifest.seconds)
        rows = f"{manifest.rows:,}" if manifest.rows else ""
        table.add_row(name, spent, rows, headline(manifest), str(Path(result.artifact).parent / name))
    return table


def plan_table(steps: Sequence[Step]) -> Table:
    """What would run and why; the artifacts by their names in the run's directory, which the title names."""
    place = str(Path(steps[0].artifact).parent) if steps else None
    table = table_of(("node", "what", "why", "last time", "artifact"), right=("last time",), title=place)
    for step in steps:
        last = duration(step.last_seconds) if step.last_seconds is not None else "–"
        what = "[dim]nothing to do[/]" if step.cached else "[bold yellow]run[/]"
        table.add_row(step.name, what, step.why, last, Path(step.artifact).name)
    return table
