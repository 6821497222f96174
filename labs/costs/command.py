"""The command, the headings of its options, and the report's section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from cloze.core.humanize import format_bytes, format_count
from cloze.flows.commands.base.options import SINGLE_DEVICE_FIELDS, OptionOverride
from cloze.flows.commands.base.stage_command import StageArguments, StageCommand, run_stage
from cloze.flows.report.report_nodes import ReportNode, SummaryTable
from cloze.flows.report.section import ReportSection
from cloze.labs.costs.stage import CELL, NOTES

if TYPE_CHECKING:
    from cloze.core.stages.execute import BuildResult

HEADINGS = {
    "What to measure": "*lengths *batch_sizes *thread_counts *precision",
    "How long": "*passes *seconds",
    **SINGLE_DEVICE_FIELDS,
}
FIGURES = {  # heading of a column by key of a combination
    "latency_ms": "p50 ms",
    "latency_p99_ms": "p99 ms",
    "passes": "passes",
    "energy_mj": "mJ a sequence",
    "champion_ms": "other's p50 ms",
    "latency_ratio": "times the other's",
}


@click.command(
    "latency",
    cls=StageCommand,
    stage="latency",
    positional=("checkpoint",),
    inputs={"champion": ("--against", "Checkpoint to measure in alternation, for a ratio.")},
    spelled={
        name: OptionOverride(f"--{name.replace('_', '-')}")
        for name in ("lengths", "batch_sizes", "thread_counts")
    },
    transient=True,
)
def latency(arguments: StageArguments) -> None:
    """Measure a checkpoint's latency, or two in turn.

    Prints median and p99 of the encoder's forward pass by length, batch size and threads, the
    energy where the machine counts it, and the size of the weights.
    """
    run_stage(arguments, None if arguments.as_json else _show)


def _show(result: BuildResult) -> dict[str, Any]:
    from cloze.flows.views import terminal

    columns, rows = _table(result.manifest.summary)
    console, content = terminal.output(), {"title": "", "columns": columns, "rows": rows}
    console.print(*terminal.summary_tables(content, console.width))
    return {}


def _table(summary: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of the combinations."""
    cells = summary["cells"]
    keys = [key for key in (*CELL, *FIGURES) if key in cells[0]]
    names = [FIGURES.get(key, key.replace("_", " ")) for key in keys]
    return names, [[_text(cell, key) for key in keys] for cell in cells]


def _text(cell: Mapping[str, Any], key: str) -> str:
    """Return a figure, with its 95 % interval if it has one."""
    value, ends = cell[key], cell.get(f"{key}_interval")
    text = f"{value:.3g}" if isinstance(value, float) else f"{value:,}"
    return text if ends is None else f"{text} ({ends[0]:.3g} to {ends[1]:.3g})"


def _tables(config: Any, nodes: Sequence[ReportNode]) -> tuple[list[SummaryTable], str]:
    """Return a table of each node of the stage."""
    tables = []
    for node in (node for node in nodes if node.stage == "latency"):
        summary = node.manifest.summary
        columns, rows = _table(summary)
        size = f"{format_count(summary['parameters'])} parameters, {format_bytes(summary['bytes'])}"
        notes = [
            f"Encoder in {summary['precision']} on {summary['device_name']}; {size} of weights.",
            *(f"{note[0].upper()}{note[1:]}." for note in summary[NOTES]),
        ]
        tables.append(
            SummaryTable(title=f"Latency: {node.name}", columns=columns, rows=rows, notes=notes)
        )
    return tables, ""


SECTION = ReportSection(tables=_tables)
