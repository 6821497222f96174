"""The command, the headings of its options, and the report's section."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from cloze.flows.commands.base.stage_command import StageArguments, StageCommand, run_stage
from cloze.flows.report.report_nodes import ReportNode
from cloze.flows.report.section import ReportSection

if TYPE_CHECKING:
    from cloze.core.stages.execute import BuildResult


SPLITS = ("train", "dev", "test")
ORDER = (
    *("examples", "dropped", "labels", "class", "length", "truncated", "repeats"),
    *("repeats with several answers", "constant", "shared", "rules", "odd"),
)


def rows(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the figures as rows of a table: what is measured, then its value by split."""
    titles = {
        "length": summary["unit"],
        "truncated": f"truncated to {summary['max_length']} tokens",
        "shared": "in train too,",
        "rules": "right by",
        "odd": "with",
    }
    # a manifest's keys are sorted alphabetically
    splits = {name: summary["splits"][name] for name in SPLITS if name in summary["splits"]}
    ordered = {
        split: {key: own[key] for key in ORDER if key in own} for split, own in splits.items()
    }
    flat = {split: dict(_flat(own, titles)) for split, own in ordered.items()}
    names = dict.fromkeys(name for own in flat.values() for name in own)
    return [("", *flat), *((name, *(own.get(name, "") for own in flat.values())) for name in names)]


def _flat(figures: Mapping[str, Any], titles: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Iterate over the figures that are no mappings, with the names above them, and as text."""
    for key, value in figures.items():
        name = titles.get(key, key)
        if isinstance(value, Mapping):
            yield from ((f"{name} {below}", text) for below, text in _flat(value, {}))
        elif isinstance(value, float):
            yield name, f"{value:.1%}" if 0 < value < 1 else f"{value:,.4g}"
        elif key != "example" and value not in (None, []):
            yield name, f"{value:,}" if isinstance(value, int) else str(value)


@click.command(
    "task-card",
    cls=StageCommand,
    stage="task-card",
    positional=("task",),
    inputs={
        "checkpoint": ("--checkpoint", "Checkpoint whose tokenizer counts the tokens."),
        "vocab": ("--tokenizer", "Tokenizer that counts the tokens. Default: words are counted."),
    },
    transient=True,
)
def task_card(arguments: StageArguments) -> None:
    """Show a task's classes, lengths, repeats and shortcuts.

    TASK is a task, such as rte; `cloze help tasks` lists them. Shortcuts are texts that dev shares
    with train, and rules that read less than the task needs, such as the length alone.
    """

    def show(result: BuildResult) -> dict[str, Any]:
        from cloze.flows.views import terminal

        if not arguments.as_json:
            head, *body = rows(result.manifest.summary)
            table = terminal.table_of(head, right=head[1:])
            for row in body:
                table.add_row(*row)
            terminal.output().print(table, markup=False)
        return {}

    run_stage(arguments, show)


def _pictures(nodes: Sequence[ReportNode]) -> list[tuple[str, str, str]]:
    """Return each card as a table, with its findings below."""
    found = []
    for node in nodes:
        if node.stage == "task-card":
            lines = "".join(
                f"<tr><td>{html.escape(name)}</td>"
                + "".join(f'<td class="n">{html.escape(text)}</td>' for text in values)
                + "</tr>"
                for name, *values in rows(node.manifest.summary)
            )
            told = "; ".join(node.manifest.summary["findings"]) or "Nothing odd was found."
            found.append((f"Data of {node.task}", f'<table class="scores">{lines}</table>', told))
    return found


SECTION = ReportSection(pictures=_pictures)
HEADINGS = {"Task and data": "*task *data *options *max_length"}
