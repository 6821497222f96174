"""`cloze score`: a pretrained checkpoint, and minimal pairs or sentences in; how likely it finds them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flows.commands.spelling import GroupedOption
from flows.commands.stage_command import Given, StageCommand, run_stage
from flows.commands.verb_command import Answer, Asked, ask

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pipeline.core.execute import Result

OF_TEXTS = ("mask", "normalize")  # of the options, those that sentences alone understand


@click.command(cls=StageCommand, stage="score", inputs={"checkpoint": None}, transient=True)
@click.argument("checkpoint")
@click.option("--text", "texts", cls=GroupedOption, multiple=True, metavar="TEXT", help="A sentence. May be repeated.")
@click.option("--file", cls=GroupedOption, metavar="FILE", help="A sentence a line; - is standard input.")
@click.option(
    "--jsonl", cls=GroupedOption, is_flag=True, help="The lines are JSON objects, as they are where FILE ends in .jsonl."
)
def score(given: Given, checkpoint: str, texts: tuple[str, ...], file: str | None, jsonl: bool) -> None:
    """Score minimal pairs, such as BLiMP's, or sentences alone, by CHECKPOINT, which need not be fine-tuned.

    With --data, the share of the pairs whose good sentence is likelier. Without it, the log-probability of each sentence: those of
    --text, of --file, or of standard input.
    """
    if "data" in given.config or "data" in given.overrides:
        if texts or file is not None:
            raise click.UsageError("--data is for minimal pairs, --text and --file for sentences alone; leave one of them out")
        given.inputs["checkpoint"] = checkpoint
        run_stage(given, None if given.as_json else _tell)
        return
    options = {**given.config, **given.overrides}
    foreign = sorted(options.keys() - set(OF_TEXTS))
    if foreign:
        raise click.UsageError(f"--{foreign[0]} is for minimal pairs; name them with --data, or leave it out")
    asked = Asked(checkpoint=checkpoint, texts=texts, file=file, jsonl=jsonl, out=given.out, as_json=given.as_json)
    ask("score-texts", asked, options, show)


def show(answer: Answer) -> RenderableType:
    """A sentence's score, and the sentence."""
    return f"{answer['score']:9.3f}  {answer['text']}"


def _tell(result: Result) -> dict[str, Any]:
    """The accuracy of each phenomenon, the worst first."""
    from rich.console import Console

    from flows.views import terminal

    table = terminal.table_of(("accuracy", "phenomenon"), right=("accuracy",))
    for name, value in sorted(result.manifest.summary["metrics"]["by_phenomenon"].items(), key=lambda item: float(item[1])):
        table.add_row(f"{100 * value:.1f}", terminal.cut(name))
    Console(highlight=False).print(table)
    return {}
