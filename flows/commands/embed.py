"""`cloze embed`: a checkpoint and texts in, a vector each out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from flows.commands.common import emit
from flows.commands.verb_command import Answer, Asked, ask, requested, verb_options

if TYPE_CHECKING:
    from rich.console import RenderableType

NPY = ".npy"
SHOWN = 6  # numbers of a vector


@click.command("embed")
@verb_options(told="A text to embed.")
@click.option("--pooling", type=click.Choice(["mean", "first", "pooler"]), help="By default the checkpoint's own, else mean.")
@click.option("--normalize/--no-normalize", default=None, help="Give vectors length 1; by default as the checkpoint was tuned.")
@click.option("--max-length", type=click.IntRange(min=3), help="The most pieces of a text, special tokens included.")
def embed(asked: Asked, pooling: str | None, normalize: bool | None, max_length: int | None) -> None:
    """Give TEXT a vector, by a pretrained checkpoint or one that was tuned for retrieval.

    With --out FILE.npy all vectors go to one file, float32 [texts, width], in the order of the texts.
    """
    options: dict[str, Any] = {"pooling": pooling, "normalize": normalize, "max_length": max_length}
    if asked.out is None or not asked.out.lower().endswith(NPY):
        ask("embed", asked, options, show)
        return
    from flows.graph.tools import run_verb
    from pipeline.core import storage

    with requested(replace(asked, out=None), "text") as values:
        values = {**options, "common": {}, "npy": storage.absolute(asked.out), **values}
        summary = run_verb("embed", values, asked.checkpoint, _passed_over)
    if asked.as_json:
        emit({"out": asked.out, **summary})
    else:
        click.echo(f"{summary['answered']:,} vectors of {summary['size']} numbers in {asked.out}", err=True)


def show(answer: Answer) -> RenderableType:
    """The first numbers of a vector, and the text."""
    vector = answer["embedding"]
    more = " …" if len(vector) > SHOWN else ""
    return f"{' '.join(f'{number:.3f}' for number in vector[:SHOWN])}{more}  {answer['text']}"


def _passed_over(answers: Sequence[Answer]) -> None:
    del answers
