"""`cloze corpus`: raw text in, a clean corpus out."""

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
