"""Commands that look inside a checkpoint: attention, heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from cloze.flows.commands.base.inference_command import (
    Answer,
    InferenceCommand,
    Request,
    input_values,
    progress_line,
)
from cloze.flows.commands.base.options import emit
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
    from cloze.flows.graph.command import run_inference
    from cloze.flows.views import terminal
    from cloze.flows.views.attention_page import AttentionPage

    page = AttentionPage()

    def receive(answers: Sequence[Answer]) -> None:
        for answer in answers:
            page.add(answer)

    with (
        input_values(replace(request, out=None), "text") as values,
        progress_line("attention") as report,
    ):
        values = {**options, "common": fields, **values}
        summary = run_inference("attention", values, request.checkpoint, receive, report)
    count = page.write(request.out, request.checkpoint)
    if request.as_json:
        emit({"out": request.out, **summary})
    else:
        note = f"the attention maps of {count:,} text{'s' * (count > 1)} in {request.out}"
        terminal.console().print(note, markup=False, soft_wrap=True)


@click.command("heads", cls=StageCommand, stage="heads", positional=("checkpoint",), transient=True)
def heads(arguments: StageArguments) -> None:
    """Measure what each attention head attends to.

    Rows are those of --dataset, the lines of --texts, or the sentences of --treebank, which also
    scores the heads as parsers.
    """
    run_stage(arguments, None if arguments.as_json else _show_relations)


def _show_relations(result: BuildResult) -> dict[str, Any]:
    """Print the best head of each relation."""
    return {}
