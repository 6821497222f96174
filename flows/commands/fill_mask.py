"""`cloze fill-mask`: a checkpoint and texts in, the likeliest pieces for each mask out."""

from __future__ import annotations

import click

from flows.commands.common import emit, json_option


@click.command("fill-mask")
@click.argument("checkpoint")
@click.argument("text", nargs=-1, required=True)
@click.option("--top", "top_k", type=click.IntRange(min=1), default=5, show_default=True, help="Candidates a mask.")
@json_option
def fill_mask(checkpoint: str, text: tuple[str, ...], top_k: int, as_json: bool) -> None:
    """Fill each [MASK] of TEXT."""
    from rich.console import Console
    from rich.table import Table

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
