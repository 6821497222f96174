"""`cloze fill-mask`: a checkpoint and texts in, the likeliest pieces for each mask out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flows.commands.verb_command import Answer, Asked, ask, verb_options

if TYPE_CHECKING:
    from rich.console import RenderableType


@click.command("fill-mask")
@verb_options(told="A text with at least one [MASK].")
@click.option("--top", "top_k", type=click.IntRange(min=1), default=5, show_default=True, help="Candidates a mask.")
def fill_mask(asked: Asked, top_k: int) -> None:
    """Fill each [MASK] of TEXT."""
    ask(
        "fill-mask",
        asked,
        {"top_k": top_k},
        show,
        gather=lambda answers: {"predictions": [mask for answer in answers for mask in answer["predictions"]]},
    )


def show(answer: Answer) -> RenderableType:
    """A table a mask: probability, piece, and the text with it in place."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    tables = []
    for candidates in answer["predictions"]:
        table = Table(box=None, show_header=False, pad_edge=False)
        for candidate in candidates:
            table.add_row(f"{candidate['score']:.3f}", Text(candidate["token"], style="bold"), Text(candidate["sequence"]))
        tables.append(table)
    return Group(*tables)
