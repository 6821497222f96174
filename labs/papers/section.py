"""The report's section of a paper's table: its option, its tables and its figure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from textwrap import fill
from typing import Any

from cloze.core.humanize import shortened
from cloze.core.options import Options
from cloze.flows.report.report_nodes import ReportNode, SummaryTable
from cloze.flows.report.section import ReportSection
from cloze.labs.papers.paper_table import COSTS, RowPoints, figure_points, paper_tables, table_cells
from cloze.labs.papers.table_config import PaperTable

SCORED = ("finetune", "evaluate")  # stages that a table's cells read if it names none


class TableOptions(Options):
    """Option of the section."""

    table: PaperTable | None = None
    """A paper's table: rows and columns of the run, with the published figures."""

    def empty_without(self, present: Collection[str]) -> str:
        """Return what stays empty if a run has these stages alone; see `StageConfig`."""
        if self.table is None:
            return ""
        selectors = [column.nodes for column in self.table.columns.values() if not column.mean_of]
        stages_read = {str(item.get("stage", SCORED)) for item in selectors}
        if any(stage in words for stage in present for words in stages_read):
            return ""
        return "cell of the table"


def _tables(config: Any, nodes: Sequence[ReportNode]) -> tuple[list[SummaryTable], str]:
    """Return the tables and the figure, an `<svg>` element or nothing."""
    table: PaperTable | None = config.table
    if table is None:
        return [], ""
    cells = table_cells(table, nodes)
    figure = ""
    if table.figure is not None and (rows := figure_points(table, cells, nodes)):
        label = table.columns[table.figure.y].label or table.figure.y
        headings = {key: heading for heading, key in COSTS}
        figure = points(rows, headings.get(table.figure.x, table.figure.x), label)
    return paper_tables(table, cells, nodes), figure


def points(rows: Sequence[RowPoints], x_label: str, y_label: str) -> str:
    """Plot a dot for each score and a dash at each row's mean, over the rows or over log(x)."""
    import matplotlib as mpl  # it takes a second

    from cloze.flows.report import plots

    with mpl.rc_context(plots.STYLE):
        figure, axes = plots.panel(3.1)
        for number, row in enumerate(rows):
            colour = plots.CYCLE[number % len(plots.CYCLE)]
            x = number if row.x is None else row.x
            dots: dict[str, Any] = {"marker": "o", "markersize": 4, "linestyle": "none"}
            axes.plot([x] * len(row.values), row.values, color=colour, alpha=0.55, **dots)
            mean = sum(row.values) / len(row.values)
            axes.plot([x], [mean], marker="_", markersize=16, color=colour, markeredgewidth=2)
            if row.x is not None:
                place: dict[str, Any] = {"textcoords": "offset points", "xytext": (10, 3)}
                axes.annotate(shortened(row.label), (x, mean), color=colour, fontsize=8, **place)
        if any(row.x is None for row in rows):
            axes.set_xticks(range(len(rows)), [fill(shortened(row.label), 16) for row in rows])
            axes.set_xlim(-0.6, len(rows) - 0.4)
        else:
            axes.set_xscale("log")
            axes.margins(x=0.15)
            axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        return plots.svg(figure)


SECTION = ReportSection(options=TableOptions, tables=_tables)
