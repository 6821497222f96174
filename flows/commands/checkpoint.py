"""`cloze export`, `cloze import` and `cloze fill-mask`: what one does with a checkpoint."""

from __future__ import annotations

from typing import Any

import click

from flows.commands.common import given, json_option, run_stage, stage_options


@click.command()
@click.argument("checkpoint")
@click.option("--to", "out", required=True, metavar="DIR", help="The Hugging Face directory to write.")
@click.option("--force", is_flag=True, help="Write it again, whatever is there.")
@json_option
def export(checkpoint: str, out: str, force: bool, as_json: bool) -> None:
    """Export CHECKPOINT as a Hugging Face directory, and check that nothing changed on the way."""
    run_stage("export", {}, {"checkpoint": checkpoint}, {}, out=out, settings=(), force=force, as_json=as_json)


@click.command("import")
@click.argument("directory")
@click.option(
    "--as", "family", metavar="FAMILY", help="What it becomes, such as longformer or spanbert; by default what it is."
)
@click.option("--positions", type=click.IntRange(min=1), help="The longest row that the new family will read.")
@click.option("--trust-pickle", is_flag=True, help="Read a pickle's tensors where there is no safetensors file.")
@stage_options
def import_(directory: str, family: str | None, positions: int | None, trust_pickle: bool, **how: Any) -> None:
    """Make a checkpoint of the Hugging Face DIRECTORY, to pretrain further, fine-tune or distill."""
    values = given(family=family, positions=positions, trust_pickle=trust_pickle or None)
    run_stage("import", values, {"directory": directory}, {}, **how)


@click.command("fill-mask")
@click.argument("checkpoint")
@click.argument("text", nargs=-1, required=True)
@click.option("--top", "top_k", type=click.IntRange(min=1), default=5, show_default=True, help="Candidates a mask.")
@json_option
def fill_mask(checkpoint: str, text: tuple[str, ...], top_k: int, as_json: bool) -> None:
    """Fill each [MASK] of TEXT."""
    from rich.console import Console
    from rich.table import Table

    from flows.cli import emit
    from flows.graph.tools import run_tool

    summary = run_tool("fill-mask", {"texts": list(text), "top_k": top_k}, {"checkpoint": checkpoint})
    if as_json:
        emit(summary)
        return
    for candidates in summary["predictions"]:
        table = Table(box=None, show_header=False, pad_edge=False)
        for candidate in candidates:
            table.add_row(f"{candidate['score']:.3f}", f"[bold]{candidate['token']}[/]", candidate["sequence"])
        Console(highlight=False).print(table)
