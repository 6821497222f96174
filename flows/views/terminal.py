"""What a person sees of stages that are planned or made: lines and tables that fit 80 columns. They go to standard error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from flows.graph.stages import headline
from flows.views.instances import together
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


def told_table(told: Mapping[str, Any]) -> Table:
    """A table that an artifact's summary holds: `title`, `columns`, and `rows` of text; all columns but the first hold numbers."""
    columns = [str(name) for name in told["columns"]]
    table = table_of(columns, right=columns[1:], title=str(told["title"]))
    for row in told["rows"]:
        table.add_row(*(escape(str(value)) for value in row))
    return table


def result_table(results: Mapping[str, Result], sections: Mapping[str, str] | None = None) -> Table:
    """Node, time, rows and result; the title says where the links lead from that have the nodes' names.

    Args:
        sections: of nodes, so that instances share a line where there are many.
    """
    place = next((str(Path(result.artifact).parent) for result in results.values()), None)
    table = table_of(("node", "time", "rows", "result"), right=("time", "rows"), title=place)
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    for line, names in together(results, sections or {}).items():
        found = [results[name] for name in names]
        seconds, cached = sum(one.manifest.seconds for one in found), sum(one.cached for one in found)
        rows = sum(one.manifest.rows for one in found)
        more = f", {cached} cached" if cached else ""
        spent = f"cached ({duration(seconds)})" if cached == len(found) else f"{duration(seconds)}{more}"
        told = headline(found[0].manifest) if len(found) == 1 else _mean(found)
        table.add_row(line, spent, f"{rows:,}" if rows else "", told)
    return table


def _mean(found: Sequence[Result]) -> str:
    """The first metric of several artifacts."""
    metrics = [one.manifest.summary.get("metrics") or {} for one in found]
    name = str(found[0].manifest.summary.get("metric") or next(iter(metrics[0]), ""))
    values = [value for one in metrics if isinstance(value := one.get(name), (int, float))]
    return f"{name} {sum(values) / len(values):.3f} on average, best {max(values):.3f}" if values else ""
