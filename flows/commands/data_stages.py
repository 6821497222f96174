"""Commands that prepare data, from `corpus` and `explain` to `dataset` and `inspect`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import Any

import click

from cloze.core import storage
from cloze.core.errors import UsageError
from cloze.core.hub_names import hub_source
from cloze.flows.commands.base.field_options import Count
from cloze.flows.commands.base.options import (
    Command,
    GroupedCommand,
    GroupedOption,
    OptionOverride,
    complete_targets,
    emit,
    json_option,
    named_values,
    parsing,
    weights,
)
from cloze.flows.commands.base.stage_command import StageArguments, StageCommand, run_stage

SOURCES = "Sources"
TOKENIZER_HELP = "Vocab artifact, vocab.txt, tokenizer.json or Hugging Face directory."


def parse_sources(texts: tuple[str, ...]) -> list[dict[str, Any]]:
    """Parse `KIND=PATH` texts into sources; a kind may be repeated."""
    parse = named_values("wikipedia=dump.xml.bz2", "KIND=PATH")
    pairs = (pair for text in texts for pair in parse((text,)).items())
    return [hub_source({"kind": kind, "path": path}) for kind, path in pairs]


def source_option(name: str, **settings: Any) -> OptionOverride:
    """Return the spelling of an option that takes `KIND=PATH`."""
    return OptionOverride(
        name, parse_sources, {"multiple": True, "metavar": "KIND=PATH", **settings}
    )


def _parse_metadata(texts: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """Parse `KIND.WHAT=TEXT` texts into triples."""
    triples = []
    for text in texts:
        name, _, value = text.partition("=")
        kind, dot, attribute = name.partition(".")
        if not (kind and dot and attribute and value):
            raise ValueError(
                f"{text!r} must look like KIND.WHAT=TEXT, such as books.licence=CC0-1.0"
            )
        triples.append((kind, attribute, value))
    return triples


_KINDS = ", ".join(resolve_name("cloze.pipeline.corpus.readers:READERS"))
SOURCE_HELP = (
    f"Source to read: {_KINDS}, hf. A path, glob, URL, or hf=ORG/NAME:CONFIG/SPLIT. Repeatable."
)
CORPUS_OPTIONS: dict[str, OptionOverride] = {
    "sources": source_option("--source", required=True, help=SOURCE_HELP),
    "mixture": OptionOverride("--mixture", weights, {"multiple": True, "metavar": "NAME=WEIGHT"}),
}


def _source_options(command: Command) -> Command:
    command = click.option(
        "--source-metadata", "metadata", cls=GroupedOption, group=SOURCES, common=False,
        multiple=True,
        metavar="KIND.WHAT=TEXT", callback=parsing(_parse_metadata),
        help="Licence, name, url or date of a kind of source: books.licence=CC0-1.0. Repeatable.",
    )(command)  # fmt: skip
    return click.option(
        "--column", "columns", cls=GroupedOption, group=SOURCES, multiple=True,
        metavar="NAME=COLUMN",
        callback=parsing(named_values("text=content", "NAME=COLUMN")),
        help="Column for text, id, title, url or licence in jsonl, parquet and arrow sources:"
        " text=content. Repeatable.",
    )(command)  # fmt: skip


def _describe_sources(
    arguments: StageArguments,
    columns: dict[str, str] | None,
    metadata: Sequence[tuple[str, str, str]] | None,
) -> None:
    """Add the values of --column and --source-metadata to the sources."""
    from cloze.flows.graph import stages

    config: Any = stages.stage("corpus").config
    if columns:
        arguments.config["sources"] = config.with_columns(arguments.config["sources"], columns)
    if metadata:
        arguments.config["sources"] = config.with_origins(arguments.config["sources"], metadata)


@click.command(cls=StageCommand, stage="corpus", spelled=CORPUS_OPTIONS)
@_source_options
def corpus(
    arguments: StageArguments,
    columns: dict[str, str] | None,
    metadata: list[tuple[str, str, str]] | None,
) -> None:
    """Clean, filter and deduplicate raw text into a corpus.

    The artifact's card.html shows its contents, and what was dropped and why.
    """
    _describe_sources(arguments, columns, metadata)
    run_stage(arguments)


EXPLAIN_OPTIONS = {**CORPUS_OPTIONS, "sources": source_option("--source", help=SOURCE_HELP)}


@click.command(cls=StageCommand, stage="corpus", has_artifact=False, spelled=EXPLAIN_OPTIONS)
@click.argument("title")
@click.option(
    "--corpus",
    type=click.Path(),
    cls=GroupedOption,
    group=SOURCES,
    metavar="PATH",
    shell_complete=complete_targets,
    help="Corpus artifact, or RUN/corpus, whose sources and options are taken; options given here"
    " replace its own.",
)
@_source_options
def explain(
    arguments: StageArguments,
    title: str,
    corpus: str | None,
    columns: dict[str, str] | None,
    metadata: list[tuple[str, str, str]] | None,
) -> None:
    """Show why a document was kept or dropped, by step.

    TITLE is the title or the id of a document in the sources. Nothing is written.
    """
    from cloze.flows.graph import stages
    from cloze.flows.graph.command import run_tool
    from cloze.flows.graph.overrides import merge
    from cloze.flows.run.targets import resolve_path
    from cloze.flows.views import terminal
    from cloze.flows.views.inspection import page
    from cloze.flows.views.live import StageDisplay

    if corpus is not None:
        if "preset" in {**arguments.config, **arguments.overrides}:
            raise click.UsageError("--corpus has the options of its own preset; leave preset out")
        arguments.config = {
            **_settings_of(resolve_path(corpus), "corpus", "--corpus"),
            **arguments.config,
        }
    elif "sources" not in {**arguments.config, **arguments.overrides}:
        raise click.UsageError("Missing option '--source', or '--corpus' of a corpus that is made")
    _describe_sources(arguments, columns, metadata)
    values = merge(arguments.config, arguments.overrides, stages.stage("corpus").config, "corpus")
    with StageDisplay("explain", terminal.console()) as display:
        summary = run_tool("explain", {**values, "title": title}, {}, display, where="corpus")
    if arguments.as_json:
        emit(summary)
    else:
        terminal.output().print(page(summary["explain"]))


@click.command(
    cls=StageCommand,
    stage="vocab",
    checks_required=False,
    inputs={"corpus": ("--corpus", "Corpus artifact to train on, and to measure with.")},
    spelled={"import_path": OptionOverride("--import")},
)
def vocab(arguments: StageArguments) -> None:
    """Train or import a tokenizer vocabulary.

    PATH is a vocab artifact, a Hugging Face directory, a vocab.txt, a tokenizer.json, a vocab.json
    next to its merges.txt, or a spiece.model.
    """
    if arguments.out is None:
        raise click.UsageError("Missing option '--out'.")
    if {"kind", "import_path"} <= arguments.config.keys():
        raise click.UsageError(
            f"--kind ({arguments.config['kind']}) is for training; an imported tokenizer keeps its"
            " own kind. Leave the option out"
        )
    run_stage(arguments)


@click.command("compare-vocab", cls=GroupedCommand)
@click.argument("tokenizers", nargs=-1, required=True, metavar="TOKENIZER...")
@click.option(
    "--corpus",
    type=click.Path(),
    required=True,
    metavar="PATH",
    help="Corpus artifact whose held-out text is tokenized.",
)
@json_option
def compare_vocab(tokenizers: tuple[str, ...], corpus: str, as_json: bool) -> None:
    """Compare tokenizers on held-out text.

    TOKENIZER is a vocab artifact, a Hugging Face directory, or a tokenizer's file.
    """
    from cloze.flows.graph.command import run_tool
    from cloze.flows.views import terminal
    from cloze.flows.views.inspection import comparison

    summary = run_tool(
        "compare-vocab", {"tokenizers": list(tokenizers)}, {"corpus": corpus}, where="vocab"
    )
    rows = summary["report"]
    if as_json:
        emit({"report": rows})
    else:
        terminal.output().print(comparison(rows))


@click.command(
    cls=StageCommand,
    stage="dataset",
    checks_required=False,
    inputs={
        "corpus": ("--corpus", "Corpus artifact. [required]"),
        "vocab": ("--tokenizer", f"{TOKENIZER_HELP} [required]"),
        "append": (
            "--append",
            "Extend this dataset by the documents that --corpus adds; its settings and shards"
            " are kept.",
        ),
    },
)
def dataset(arguments: StageArguments) -> None:
    """Tokenize, pack and mask a corpus into Arrow shards."""
    if "append" in arguments.inputs:
        _take_settings(arguments)
    corpus, tokenizer = arguments.inputs.get("corpus"), arguments.inputs.get("vocab")
    required = {"corpus": corpus, "tokenizer": tokenizer, "out": arguments.out}
    for option, value in required.items():
        if value is None:
            raise click.UsageError(f"Missing option '--{option}'.")
    run_stage(arguments)
    _show_tokens(arguments.out or "")


def _take_settings(arguments: StageArguments) -> None:
    """Take the settings and the tokenizer from the dataset that is extended."""

    append = arguments.inputs["append"]
    refused = [f"--{name.replace('_', '-')}" for name in arguments.config]
    refused += [f"--set {name}" for name in arguments.overrides]
    refused += ["--tokenizer"] if "vocab" in arguments.inputs else []
    if refused:
        raise UsageError(
            f"--append keeps all settings and the tokenizer of {append}; leave out"
            f" {', '.join(refused)}"
        )
    arguments.config = _settings_of(append, "dataset", "--append")
    arguments.inputs["vocab"] = storage.join(append, "tokenizer")


def _settings_of(path: str, stage: str, option: str) -> dict[str, Any]:
    """Return the config of the artifact at `path`; raise UsageError if it is of another stage."""
    from cloze.core.artifacts import artifact

    manifest = artifact.read_manifest(path)
    if manifest.stage != stage:
        raise UsageError(
            f"{path} is the artifact of a {manifest.stage}, not of a {stage}; {option} takes the"
            f" output of `cloze {stage}`"
        )
    return dict(manifest.config)


def _show_tokens(out: str) -> None:
    """Print token counts by reason and the row fill, if standard error is a terminal."""
    from cloze.core.artifacts import artifact
    from cloze.flows.views import terminal

    screen = terminal.console()
    if not screen.is_terminal:
        return
    summary = artifact.read_manifest(out).summary
    table = terminal.table_of(("tokens of text", "", "share"), right=("", "share"))
    for reason, row in summary["tokens_by_reason"].items():
        table.add_row(reason.replace("_", " "), f"{row['tokens']:,}", f"{row['share']:.2%}")
    screen.print(table)
    screen.print(
        f"mean row length {summary['mean_length']:.1f} of {summary['length']} tokens,"
        f" {summary['padding_share']:.1%} padding, {summary['masked_share']:.2%} of the tokens"
        " predicted",
        style="dim",
    )


def _index_option(name: str, text: str) -> Callable[[Command], Command]:
    return click.option(
        name, type=Count(min=0), default=0, show_default=True, metavar="N", help=text
    )


@click.command("inspect")
@click.argument("path", shell_complete=complete_targets)
@_index_option("--row", "Number of the row in its split, from 0.")
@_index_option("--mask-copy", "Mask copy to show.")
@click.option(
    "--split",
    type=click.Choice(["train", "heldout"]),
    default="train",
    show_default=True,
    help="Split to read.",
)
@json_option
def inspect_(path: str, row: int, mask_copy: int, split: str, as_json: bool) -> None:
    """Show one row of a dataset as text, with its mask.

    PATH is a dataset artifact, one of its shards, or a node (RUN/NODE).
    """
    from cloze.flows.graph.command import run_tool
    from cloze.flows.run.targets import resolve_path
    from cloze.flows.views import terminal
    from cloze.flows.views.inspection import render

    values = {"row": row, "copy_number": mask_copy, "split": split}
    inputs = {"dataset": resolve_path(path)}
    summary = run_tool("inspect", values, inputs, where="dataset")
    if as_json:
        emit({key: value for key, value in summary.items() if key != "texts"})
    else:
        terminal.output().print(render(summary))
