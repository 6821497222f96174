"""`cloze generate`: a left-to-right checkpoint and beginnings of texts in, how it goes on with them out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flows.commands.verb_command import Answer, Asked, ask, verb_options

if TYPE_CHECKING:
    from rich.console import RenderableType


@click.command()
@verb_options(told="The beginning of a text.")
@click.option("--tokens", type=click.IntRange(min=1), default=40, show_default=True, help="The most tokens to write.")
@click.option("--samples", type=click.IntRange(min=1), default=1, show_default=True, help="Continuations of each text.")
@click.option(
    "--temperature", type=click.FloatRange(min=0), help="Draw from logits divided by it; 0, as by default, takes the likeliest."
)
@click.option("--top-k", type=click.IntRange(min=1), help="Draw from so many of the likeliest tokens.")
@click.option(
    "--top-p", type=click.FloatRange(min=0, max=1, min_open=True), help="Draw from the likeliest that sum up to this."
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of chance.")
def generate(
    asked: Asked,
    tokens: int,
    samples: int,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    seed: int,
) -> None:
    """Go on with TEXT, by a model that reads from left to right."""
    options = {
        "tokens": tokens,
        "samples": samples,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
    }
    ask("generate", asked, options, show)


def show(answer: Answer) -> RenderableType:
    """Each continuation behind its beginning."""
    from rich.console import Group
    from rich.text import Text

    found = []
    for one in answer["continuations"]:
        before = one["text"].removesuffix(one["continuation"])
        found.append(Text.assemble((before, "dim"), (one["continuation"], "bold")))
    return Group(*found)
