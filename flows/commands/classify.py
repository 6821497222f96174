"""`cloze classify`: a fine-tuned checkpoint and texts in, their labels, scores or endings out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flows.commands.verb_command import Answer, Asked, ask, verb_options

if TYPE_CHECKING:
    from rich.console import RenderableType


@click.command("classify")
@verb_options(told="A text to classify.")
@click.option("--pair", metavar="TEXT", help="The second text, for tasks on pairs; in a JSONL file, the field pair.")
@click.option(
    "--choice",
    "choices",
    multiple=True,
    metavar="TEXT",
    help="An ending to choose, twice or more; in a JSONL file, the field choices.",
)
@click.option("--top", "top_k", type=click.IntRange(min=1), help="How many labels a text, best first; all by default.")
def classify(asked: Asked, pair: str | None, choices: tuple[str, ...], top_k: int | None) -> None:
    """Label TEXT with a fine-tuned checkpoint: sentiment, entailment, likeness, what comes next.

    A task of labels answers with all of them and their probabilities, a task of scores (stsb) with a number, a task of endings (swag)
    with the endings that were given by --choice.
    """
    fields = ({} if pair is None else {"pair": pair}) | ({"choices": list(choices)} if choices else {})
    ask("classify", asked, {"top_k": top_k}, show, fields=fields)


def show(answer: Answer) -> RenderableType:
    """A line a label, best first: probability and label; or the score."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    if "predictions" not in answer:
        table.add_row(f"{answer['score']:.3f}")
    for number, found in enumerate(answer.get("predictions", ())):
        style = "bold" if number == 0 else ""
        table.add_row(f"{found['score']:.3f}", Text(str(found.get("text", found.get("label"))), style=style))
    return table
