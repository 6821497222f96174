"""Commands that look inside a checkpoint: attention, heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from cloze.flows.commands.base.inference_command import Answer, InferenceCommand, Request
from cloze.flows.commands.base.stage_command import StageArguments, StageCommand, run_stage

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cloze.core.stages.execute import BuildResult


def _show_heads(answer: Answer) -> RenderableType:
    """Return a line per head: the mean weights of some kinds of tokens, and the largest weight."""
    return str(len(answer["maps"]))


@click.command("attention", cls=InferenceCommand, text="Text to read.", show=_show_heads)
@click.option("--pair", metavar="TEXT", help="Second text; in a JSONL file, the field pair.")
def attention(request: Request, options: Mapping[str, Any], pair: str | None) -> None:
    """Show a text's attention maps, by layer and head.

    With --out FILE.html a page shows them, which needs no network. Otherwise each text has a
    JSON object with its tokens and maps; a terminal shows a line per head.
    """
    fields = {} if pair is None else {"pair": pair}
    attention.predict(request, options, fields)


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
