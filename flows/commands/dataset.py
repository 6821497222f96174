"""`cloze dataset`: a corpus and a tokenizer in, masked rows out."""

from __future__ import annotations

from typing import Any

import click

from flows.commands.common import given, options, run_stage, runner_options, stage_options


@click.command()
@click.option("--corpus", required=True, metavar="DIR", help="A corpus artifact.")
@click.option(
    "--tokenizer", required=True, metavar="PATH", help="A vocab artifact, vocab.txt, tokenizer.json or Hugging Face directory."
)
@click.option("--recipe", help="bert.")
@click.option("--length", type=int, help="Tokens a row, special tokens included.")
@click.option("--copies", type=int, help="Mask copies a row.")
@click.option("--shards", type=int, help="Training shards.")
@click.option("--seed", type=int)
@click.option("--mask-rate", type=float)
@options(*runner_options)
@stage_options
def dataset(
    corpus: str,
    tokenizer: str,
    recipe: str | None,
    length: int | None,
    copies: int | None,
    shards: int | None,
    seed: int | None,
    mask_rate: float | None,
    workers: int | None,
    runner: str | None,
    beam_options: tuple[str, ...],
    **how: Any,
) -> None:
    """Turn a corpus into masked rows in Arrow shards."""
    values = given(recipe=recipe, length=length, copies=copies, shards=shards, seed=seed, mask_rate=mask_rate)
    execution = given(workers=workers, runner=runner, beam_options=beam_options)
    run_stage("dataset", values, {"corpus": corpus, "vocab": tokenizer}, execution, **how)
