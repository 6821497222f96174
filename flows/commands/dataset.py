"""`cloze dataset`: a corpus and a tokenizer in, masked rows out; more text appended to them; one of them looked at."""

from __future__ import annotations

from typing import Any

import click

from flows.commands.common import given, json_option, options, run_stage, runner_options

INTERVALS = click.IntRange(min=0)


def _bins(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    """`8` or `32,64,128`."""
    if value is None:
        return None
    try:
        numbers = [int(part) for part in value.split(",")]
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number nor borders like 32,64,128", ctx, parameter) from None
    return numbers if "," in value else numbers[0]


example_options = (
    click.option("--recipe", help="bert, bert-wwm, roberta, albert, spanbert, electra, lm, packed, …"),
    click.option("--length", type=int, help="Tokens a row, special tokens included."),
    click.option("--copies", type=int, help="Mask copies a row."),
    click.option("--pairing", help="How documents become rows, where the recipe's way is not wanted."),
    click.option("--masking", help="Which tokens are chosen: token, whole-word, n-gram, span, none."),
    click.option("--mask-rate", type=float, help="The share of tokens predicted."),
    click.option("--max-predictions", type=int, help="The most predictions of a row."),
    click.option("--seed", type=int, help="Of all random numbers."),
    click.option("--shards", type=int, help="Training shards."),
    click.option("--length-bins", callback=_bins, metavar="N|A,B,…", help="Bins of rows of similar length, or their borders."),
    click.option("--compression", type=click.Choice(["none", "zstd", "lz4"]), help="Of the shards."),
)
# `--out` is not demanded by click: `--inspect` makes nothing.
how_options = (
    click.option("--out", metavar="DIR", help="The artifact's directory."),
    click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any other config field of the stage."),
    click.option("--force", is_flag=True, help="Make it again, whatever is there."),
    json_option,
)
_FIELDS = "recipe length copies pairing masking mask_rate max_predictions seed shards length_bins compression".split()
_HOW = ("out", "settings", "force", "as_json")


@click.command()
@click.option("--corpus", metavar="DIR", help="A corpus artifact.")
@click.option("--tokenizer", metavar="PATH", help="A vocab artifact, vocab.txt, tokenizer.json or Hugging Face directory.")
@click.option("--append", metavar="DIR", help="A dataset whose settings and shards are kept; what --corpus has more is added.")
@click.option("--inspect", metavar="PATH", help="Show a row of the dataset or shard at PATH, and make nothing.")
@click.option("--row", type=INTERVALS, default=0, show_default=True, help="With --inspect: which row.")
@click.option("--copy", type=INTERVALS, default=0, show_default=True, help="With --inspect: under which mask.")
@click.option("--split", default="train", show_default=True, help="With --inspect: train or heldout.")
@options(*example_options)
@options(*runner_options)
@options(*how_options)
def dataset(**options: Any) -> None:
    """Turn a corpus into masked rows in Arrow shards; add a corpus to a dataset; look at a row."""
    names = ("corpus", "tokenizer", "append", "inspect", "row", "copy", "split")
    chosen = {name: options.pop(name) for name in names}
    values = given(**{name: options.pop(name) for name in _FIELDS})
    if chosen["inspect"] is not None:
        _inspect(chosen["inspect"], chosen["row"], chosen["copy"], chosen["split"], options["as_json"])
        return
    execution = given(**{name: options.pop(name) for name in list(options) if name not in _HOW})
    inputs = {"corpus": chosen["corpus"], "vocab": chosen["tokenizer"]}
    if chosen["append"] is not None:
        values, inputs = _appending(chosen["append"], values, inputs, options["settings"])
    _require(chosen | {"tokenizer": inputs["vocab"], "out": options["out"]})
    run_stage("dataset", values, inputs, execution, **options)
    _tell(options["out"])


def _require(chosen: dict[str, Any]) -> None:
    """Raises `click.UsageError` for the first option that is missing."""
    for name in ("corpus", "tokenizer", "out"):
        if chosen[name] is None:
            raise click.UsageError(f"Missing option '--{name}'; give it, or --inspect PATH to look at a row.")


def _appending(
    append: str, values: dict[str, Any], inputs: dict[str, str | None], settings: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, str | None]]:
    """The config and the inputs of a dataset that goes on from the one at `append`."""
    from pipeline.core import artifact, storage
    from pipeline.core.errors import UsageError

    refused = [*(f"--{name.replace('_', '-')}" for name in values), *(f"--set {setting}" for setting in settings)]
    if inputs["vocab"] is not None:
        refused.append("--tokenizer")
    if refused:
        raise UsageError(f"--append keeps the recipe, tokenizer and all settings of {append}; leave out {', '.join(refused)}")
    manifest = artifact.read_manifest(append)
    if manifest.stage != "dataset":
        raise UsageError(
            f"{append} holds a {manifest.stage} artifact, not a dataset; --append takes one that `cloze dataset` made"
        )
    return dict(manifest.config), {**inputs, "vocab": storage.join(append, "tokenizer"), "append": append}


def _inspect(path: str, row: int, copy: int, split: str, as_json: bool) -> None:
    from rich.console import Console

    from flows.cli import emit
    from flows.views.row import render
    from pipeline.dataset.row_view import read_row

    view = read_row(path, row, split=split, copy=copy)
    if as_json:
        emit(view.as_json())
    else:
        Console(highlight=False).print(render(view))


def _tell(out: str) -> None:
    """On a terminal: where the text's tokens went, and how full the rows are."""
    from rich.table import Table

    from flows.views import terminal
    from pipeline.core import artifact

    screen = terminal.console()
    summary = artifact.read_manifest(out).summary
    if not screen.is_terminal:
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title, justify in (("tokens of text", "left"), ("", "right"), ("share", "right")):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    for reason, found in summary["tokens_by_reason"].items():
        table.add_row(reason.replace("_", " "), f"{found['tokens']:,}", f"{found['share']:.2%}")
    screen.print(table)
    screen.print(
        f"rows of {summary['mean_length']:.1f} tokens on average, {summary['padding_share']:.1%} of {summary['length']} is padding;"
        f" {summary['masked_share']:.2%} of the tokens are predicted",
        style="dim",
    )
