"""`cloze tag`: a checkpoint of a tagging task and texts in, the named entities in them out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flows.commands.verb_command import Answer, Asked, ask, verb_options

if TYPE_CHECKING:
    from rich.console import RenderableType


@click.command("tag")
@verb_options(told="A sentence or more.")
@click.option("--words", is_flag=True, help="Words are set off by spaces already, punctuation included.")
def tag(asked: Asked, words: bool) -> None:
    """Find the entities in TEXT with a fine-tuned checkpoint: what they are, where they stand, and how sure the model is.

    An answer's `entities` are in the order of the text: text, type, start and end (characters, the end not included), and score, the mean
    probability of its words' tags.
    """
    ask("tag", asked, {"words": words}, show)


def show(answer: Answer) -> RenderableType:
    """A line an entity: probability, type, text and place."""
    from rich.table import Table
    from rich.text import Text

    if not answer["entities"]:
        return Text("no entities", style="dim")
    table = Table(box=None, show_header=False, pad_edge=False)
    for found in answer["entities"]:
        place = Text(f"{found['start']}–{found['end']}", style="dim")
        table.add_row(f"{found['score']:.3f}", Text(found["type"]), Text(found["text"], style="bold"), place)
    return table
