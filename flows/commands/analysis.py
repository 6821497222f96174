"""Commands that look inside a checkpoint: attention, heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from cloze.flows.commands.base.inference_command import (
    Answer,
    InferenceCommand,
    Request,
)
from cloze.flows.commands.base.options import GroupedOption
from cloze.flows.commands.base.stage_command import StageArguments, StageCommand, run_stage

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cloze.core.stages.execute import BuildResult


def _show_heads(answer: Answer) -> RenderableType:
    """Return a line per head."""
    from cloze.flows.views.attention_page import head_table

    return head_table(answer)


@click.command("attention", cls=InferenceCommand, text="Text to read.", show=_show_heads)
@click.option("--pair", metavar="TEXT", help="Second text; in a JSONL file, the field pair.")
def attention(request: Request, options: Mapping[str, Any], pair: str | None) -> None:
    """Show a text's attention maps, by layer and head.

    With --out FILE.html, one page shows the maps of all texts; it needs no network. Otherwise the
    answers have the tokens and maps, and a terminal shows a line per head.
    """
    fields = {} if pair is None else {"pair": pair}
    if request.out is None or not request.out.lower().endswith(".html"):
        attention.predict(request, options, fields)
        return
    from cloze.flows.views.attention_page import AttentionPage

    page = AttentionPage()

    def receive(answers: Sequence[Answer]) -> None:
        for answer in answers:
            page.add(answer)

    out = request.out

    def finish(summary: Mapping[str, Any]) -> str:
        count = page.write(out, request.checkpoint)
        return f"the attention maps of {count:,} text{'s' * (count > 1)}"

    attention.predict_into_file(request, {**options, "common": fields}, receive, finish)


@click.command("heads", cls=StageCommand, stage="heads", positional=("checkpoint",), transient=True)
@click.option(
    "--svg", cls=GroupedOption, metavar="FILE", help="Also draw the results to this SVG file."
)
def heads(arguments: StageArguments, svg: str | None) -> None:
    """Measure what each attention head attends to.

    Rows are those of --dataset, the lines of --texts, or the sentences of --treebank, which also
    scores the heads as parsers.
    """

    def show(result: BuildResult) -> dict[str, Any]:
        from cloze.core import storage
        from cloze.flows.report.head_plots import draw

        summary = result.manifest.summary
        if svg is not None:
            storage.write_bytes(svg, draw(summary).encode())
        if not arguments.as_json:
            _print_heads(summary)
        return {} if svg is None else {"svg": svg}

    run_stage(arguments, show)


def _print_heads(summary: Mapping[str, Any]) -> None:
    """Print the largest head of each kind, and the best head of each frequent relation."""
    from rich.console import Console

    from cloze.flows.views import terminal

    console = Console(highlight=False)
    columns = ("attention to", "mean", "largest", "head")
    table = terminal.table_of(columns, right=columns[1:])
    for name, layers in summary["by_head"].items():
        values = [
            (value, f"{layer}.{head}")
            for layer, row in enumerate(layers, 1)
            for head, value in enumerate(row, 1)
            if value is not None
        ]
        if values:
            mean, (largest, head) = sum(value for value, _ in values) / len(values), max(values)
            table.add_row(name, f"{mean:.2f}", f"{largest:.2f}", head)
    console.print(table)
    relations = summary.get("relations", ())
    if relations:
        names = ("relation", "words", "head", "direction", "accuracy", "offset", "its accuracy")
        table = terminal.table_of(names, right=names[1:3] + names[4:])
        frequent = max(row["count"] for row in relations) / 100
        for row in (row for row in relations if row["count"] >= frequent):
            cells = f"{row['count']:,}", f"{row['layer']}.{row['head']}", row["direction"]
            scores = f"{row['accuracy']:.1%}", f"{row['offset']:+}", f"{row['offset_accuracy']:.1%}"
            table.add_row(row["relation"], *cells, *scores)
        console.print(table)
