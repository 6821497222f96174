"""Commands that look inside a checkpoint: attention, heads, neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from cloze.flows.commands.base.inference_command import Answer, InferenceCommand, Request
from cloze.flows.commands.base.stage_command import StageArguments, StageCommand
from cloze.labs.inside.probing import run_and_draw, svg_option

if TYPE_CHECKING:
    from rich.console import RenderableType


def _show_heads(answer: Answer) -> RenderableType:
    """Return a line per head."""
    from cloze.labs.inside.attention_page import head_table

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
    from cloze.labs.inside.attention_page import AttentionPage

    page = AttentionPage()

    def receive(answers: Sequence[Answer]) -> None:
        for answer in answers:
            page.add(answer)

    out = request.out

    def finish(summary: Mapping[str, Any]) -> str:
        count = page.write(out, request.checkpoint)
        return f"the attention maps of {count:,} text{'s' * (count > 1)}"

    attention.predict_into_file(request, {**options, "common": fields}, receive, finish)


SHOWN = 50  # characters on each side of an occurrence


def _show_neighbours(answer: Answer) -> RenderableType:
    """Return a line per nearest word, then each nearest occurrence with its surroundings."""
    from rich.console import Group
    from rich.text import Text

    lines = [
        Text.assemble(f"{row['score']:.3f}  ", (row["word"], "bold"))
        for row in answer.get("static", ())
    ]
    for row in answer.get("contexts", ()):
        text, start, end = row["sentence"], row["start"], row["end"]
        before = text[:start] if start <= SHOWN else f"…{text[start - SHOWN : start]}"
        after = text[end:] if len(text) <= end + SHOWN else f"{text[end : end + SHOWN]}…"
        source = ", ".join(filter(None, (row["title"], row["url"] or row["id"], row["licence"])))
        lines.append(
            Text.assemble(f"{row['score']:.3f}  ", before, (text[start:end], "bold"), after)
        )
        lines.append(Text(f"       {source}", style="dim"))
    return Group(*lines or [Text("nothing found", style="dim")])


@click.command(
    "neighbours", cls=InferenceCommand, field="word", text="Word to find.", show=_show_neighbours
)
@click.option(
    "--in",
    "sentence",
    metavar="TEXT",
    help="Sentence that contains the word; in a JSONL file, the field in.",
)
def neighbours(request: Request, options: Mapping[str, Any], sentence: str | None) -> None:
    """Find nearest occurrences of a word, and nearest words.

    Occurrences in --corpus are compared by their states in context with the word's in the sentence
    of --in; words by the static vectors of --static, or of CHECKPOINT if it has such.
    """
    neighbours.predict(request, options, {} if sentence is None else {"in": sentence})


@click.command("heads", cls=StageCommand, stage="heads", positional=("checkpoint",), transient=True)
@svg_option
def heads(arguments: StageArguments, svg: str | None) -> None:
    """Measure what each attention head attends to.

    Rows are those of --dataset, the lines of --texts, or the sentences of --treebank, which also
    scores the heads as parsers.
    """
    run_and_draw(arguments, svg, "cloze.labs.inside.head_plots:draw", _print_heads)


def _print_heads(summary: Mapping[str, Any]) -> None:
    """Print the largest head of each kind, and the best head of each frequent relation."""
    from cloze.flows.views import terminal

    console = terminal.output()
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
        console.print(table, markup=False)
