"""`cloze corpus`, `cloze vocab`, `cloze dataset`: the Beam stages."""

from __future__ import annotations

from typing import Any

import click

from flows.commands.common import given, options, run_stage, runner_options, stage_options


def _source(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[dict[str, str]]:
    sources = []
    for value in values:
        kind, equals, path = value.partition("=")
        if not equals or not kind or not path:
            raise click.BadParameter(f"{value!r} must look like KIND=PATH, such as wikipedia=dump.xml.bz2")
        sources.append({"kind": kind, "path": path})
    return sources


@click.command()
@click.option(
    "--source", "sources", multiple=True, required=True, callback=_source, metavar="KIND=PATH",
    help="wikipedia=DUMP, wikiextractor=DIR, books=DIR, docstrings=PACKAGE,… ; may be repeated.",
)  # fmt: skip
@options(*runner_options)
@stage_options
def corpus(
    sources: list[dict[str, str]],
    workers: int | None,
    runner: str | None,
    beam_options: tuple[str, ...],
    **how: Any,
) -> None:
    """Clean, filter and deduplicate raw text into a corpus."""
    execution = given(workers=workers, runner=runner, beam_options=beam_options)
    run_stage("corpus", {"sources": sources}, {}, execution, **how)


@click.command()
@click.option("--corpus", required=True, metavar="DIR", help="A corpus artifact.")
@click.option("--kind", help="wordpiece.")
@click.option("--size", type=int, help="Pieces, special tokens included.")
@click.option("--lowercase/--cased", default=None, help="Lower the case and strip accents, as BERT's uncased models do.")
@stage_options
def vocab(corpus: str, kind: str | None, size: int | None, lowercase: bool | None, **how: Any) -> None:
    """Train a vocabulary on a corpus."""
    run_stage("vocab", given(kind=kind, size=size, lowercase=lowercase), {"corpus": corpus}, {}, **how)


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
