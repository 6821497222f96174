"""`cloze vocab`: a corpus in, a tokenizer out."""

from __future__ import annotations

from typing import Any

import click

from flows.commands.common import given, run_stage, stage_options


@click.command()
@click.option("--corpus", required=True, metavar="DIR", help="A corpus artifact.")
@click.option("--kind", help="wordpiece.")
@click.option("--size", type=int, help="Pieces, special tokens included.")
@click.option("--lowercase/--cased", default=None, help="Lower the case and strip accents, as BERT's uncased models do.")
@stage_options
def vocab(corpus: str, kind: str | None, size: int | None, lowercase: bool | None, **how: Any) -> None:
    """Train a vocabulary on a corpus."""
    run_stage("vocab", given(kind=kind, size=size, lowercase=lowercase), {"corpus": corpus}, {}, **how)
