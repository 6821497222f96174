"""`cloze dataset`: a corpus and a tokenizer in, masked rows out; more text appended to them; one of them looked at."""

from __future__ import annotations

from typing import Any

import click

from flows.commands.common import emit
from flows.commands.spelling import Spelled
from flows.commands.stage_command import Given, StageCommand, run_stage


def _bins(text: str) -> int | list[int]:
    """`8` or `32,64,128`."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{text!r} is neither a number nor borders like 32,64,128") from None
    return numbers if "," in text else numbers[0]


@click.command(
    cls=StageCommand,
    stage="dataset",
    demanding=False,
    inputs={
        "corpus": ("--corpus", "A corpus artifact."),
        "vocab": ("--tokenizer", "A vocab artifact, vocab.txt, tokenizer.json or Hugging Face directory."),
        "append": ("--append", "A dataset whose settings and shards are kept; what --corpus has more is added."),
    },
    spelled={"length_bins": Spelled("--length-bins", _bins, {"metavar": "N|A,B,…"})},
)
@click.option("--inspect", metavar="PATH", help="Show a row of the dataset or shard at PATH, and make nothing.")
@click.option("--row", type=click.IntRange(min=0), default=0, show_default=True, help="With --inspect: which row.")
@click.option("--copy", type=click.IntRange(min=0), default=0, show_default=True, help="With --inspect: under which mask.")
@click.option("--split", default="train", show_default=True, help="With --inspect: train or heldout.")
def dataset(given: Given, inspect: str | None, row: int, copy: int, split: str) -> None:
    """Turn a corpus into masked rows in Arrow shards; add a corpus to a dataset; look at a row."""
    if inspect is not None:
        _inspect(inspect, {"row": row, "copy_number": copy, "split": split}, given.as_json)
        return
    if "append" in given.inputs:
        _append(given)
    for option, value in (("corpus", given.inputs.get("corpus")), ("tokenizer", given.inputs.get("vocab")), ("out", given.out)):
        if value is None:
            raise click.UsageError(f"Missing option '--{option}'; give it, or --inspect PATH to look at a row.")
    run_stage(given)
    _tell(given.out or "")


def _append(given: Given) -> None:
    """Take settings and tokenizer of the dataset that is appended to."""
    from pipeline.core import artifact, storage
    from pipeline.core.errors import UsageError

    append = given.inputs["append"]
    refused = [f"--{name.replace('_', '-')}" for name in given.config]
    refused += [f"--set {name}" for name in given.overrides]
    refused += ["--tokenizer"] if "vocab" in given.inputs else []
    if refused:
        raise UsageError(f"--append keeps the recipe, tokenizer and all settings of {append}; leave out {', '.join(refused)}")
    manifest = artifact.read_manifest(append)
    if manifest.stage != "dataset":
        raise UsageError(
            f"{append} holds a {manifest.stage} artifact, not a dataset; --append takes one that `cloze dataset` made"
        )
    given.config = dict(manifest.config)
    given.inputs["vocab"] = storage.join(append, "tokenizer")


def _inspect(path: str, values: dict[str, Any], as_json: bool) -> None:
    from rich.console import Console

    from flows.graph.tools import run_tool
    from flows.views.row import render

    summary = run_tool("inspect", values, {"dataset": path}, where="dataset")
    if as_json:
        emit({key: value for key, value in summary.items() if key != "texts"})
    else:
        Console(highlight=False).print(render(summary))


def _tell(out: str) -> None:
    """On a terminal: where the text's tokens went, and how full the rows are."""
    from flows.views import terminal
    from pipeline.core import artifact

    screen = terminal.console()
    summary = artifact.read_manifest(out).summary
    if not screen.is_terminal:
        return
    table = terminal.table_of(("tokens of text", "", "share"), right=("", "share"))
    for reason, found in summary["tokens_by_reason"].items():
        table.add_row(reason.replace("_", " "), f"{found['tokens']:,}", f"{found['share']:.2%}")
    screen.print(table)
    screen.print(
        f"rows of {summary['mean_length']:.1f} tokens on average, {summary['padding_share']:.1%} of {summary['length']} is padding;"
        f" {summary['masked_share']:.2%} of the tokens are predicted",
        style="dim",
    )
