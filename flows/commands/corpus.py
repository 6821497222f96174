"""`cloze corpus`: raw text in, a clean corpus out; or, with `--explain`, what is done to one document."""

from __future__ import annotations

from typing import Any

import click

from flows.commands.common import emit
from flows.commands.spelling import CONFIG, GroupedOption, Spelled, named_values, parsing, weights
from flows.commands.stage_command import Given, StageCommand, run_stage
from pipeline.core.humanize import count_of


def sources_of(texts: tuple[str, ...]) -> list[dict[str, Any]]:
    """`KIND=PATH` texts as sources; a kind may come more than once."""
    parse = named_values("wikipedia=dump.xml.bz2", "KIND=PATH")
    return [{"kind": kind, "path": path} for text in texts for kind, path in parse((text,)).items()]


def words_of(text: str) -> int:
    """`10M` as a number."""
    found = count_of(text)
    if found is None:
        raise ValueError(f"{text!r} is no number of words; write it as 10M, 2.5M, 800k or 10000000")
    return found


def about_of(texts: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """`KIND.WHAT=TEXT` texts as triples."""
    found = []
    for text in texts:
        name, _, value = text.partition("=")
        kind, dot, what = name.partition(".")
        if not (kind and dot and what and value):
            raise ValueError(f"{text!r} must look like KIND.WHAT=TEXT, such as books.licence=CC0-1.0")
        found.append((kind, what, value))
    return found


@click.command(
    cls=StageCommand,
    stage="corpus",
    demanding=False,
    spelled={
        "sources": Spelled(
            "--source",
            sources_of,
            {
                "multiple": True,
                "required": True,
                "metavar": "KIND=PATH",
                "help": "wikipedia=DUMP, html=DUMP (Wikimedia Enterprise's, or pages), wikiextractor=DIR, books=DIR, jsonl=FILE, warc=FILE,"
                " text=DIR, parquet=FILE, arrow=FILE, docstrings=PACKAGE,… ; a file, a directory or a pattern, local or s3://, gs://; may be repeated.",
            },
        ),
        "words": Spelled("--words", words_of, {"metavar": "NUMBER"}),
        "mixture": Spelled("--mixture", weights, {"metavar": "NAME=WEIGHT,…"}),
    },
)
@click.option(
    "--field", "fields", cls=GroupedOption, group=CONFIG, multiple=True, metavar="NAME=COLUMN",
    callback=parsing(named_values("text=content", "NAME=COLUMN")),
    help="What jsonl, parquet and arrow sources call text, id, title, url or licence.",
)  # fmt: skip
@click.option(
    "--about", cls=GroupedOption, group=CONFIG, multiple=True, metavar="KIND.WHAT=TEXT", callback=parsing(about_of),
    help="The licence, name, url or date (of the snapshot) of a kind of source: books.licence=CC0-1.0.",
)  # fmt: skip
@click.option(
    "--explain", metavar="TITLE", help="Show what each step does to the document of this title (or id); write nothing."
)
def corpus(given: Given, fields: dict[str, str] | None, about: list[tuple[str, str, str]] | None, explain: str | None) -> None:
    """Clean, filter and deduplicate raw text into a corpus.

    The artifact's card.html says what is in it, and what was dropped on the way and why.
    """
    if fields or about:
        from flows.graph import stages

        config: Any = stages.stage("corpus").config
        if fields:
            given.config["sources"] = config.with_columns(given.config["sources"], fields)
        given.config["sources"] = config.with_origins(given.config["sources"], about or ())
    if explain is not None:
        _explain(given, explain)
    else:
        run_stage(given)


def _explain(given: Given, title: str) -> None:
    from rich.console import Console

    from flows.graph import stages
    from flows.graph.overrides import merge
    from flows.graph.tools import run_tool
    from flows.views import terminal
    from flows.views.explanation import page
    from flows.views.live import StageDisplay

    values = merge(given.config, given.overrides, stages.stage("corpus").config, "corpus")
    with StageDisplay("explain", terminal.console()) as display:
        summary = run_tool("explain", {**values, "title": title}, {}, display, where="corpus")
    if given.as_json:
        emit(summary)
    else:
        Console(highlight=False).print(page(summary["explain"]))
