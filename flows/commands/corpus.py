"""`cloze corpus`: raw text in, a clean corpus out; or, with `--explain`, what is done to one document."""

from __future__ import annotations

from typing import Any

import click

from flows.commands.common import given, json_option, options, run_stage, runner_options


def _source(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[dict[str, Any]]:
    sources: list[dict[str, Any]] = []
    for value in values:
        kind, equals, path = value.partition("=")
        if not equals or not kind or not path:
            raise click.BadParameter(f"{value!r} must look like KIND=PATH, such as wikipedia=dump.xml.bz2")
        sources.append({"kind": kind, "path": path})
    return sources


def _field(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    fields = {}
    for value in values:
        name, equals, column = value.partition("=")
        if not equals or not name or not column:
            raise click.BadParameter(f"{value!r} must look like NAME=COLUMN, such as text=content")
        fields[name] = column
    return fields


def _named(sources: list[dict[str, Any]], fields: dict[str, str]) -> list[dict[str, Any]]:
    """The sources, those that have columns with their names."""
    if not fields:
        return sources
    from pipeline.corpus.readers import READERS, find_reader

    structured = [kind for kind in READERS if find_reader(kind).has_columns]
    if not any(source["kind"] in structured for source in sources):
        raise click.UsageError(f"--field names columns of {', '.join(structured)} sources, and none is given; leave it out")
    return [{**source, "fields": fields} if source["kind"] in structured else source for source in sources]


@click.command()
@click.option(
    "--source", "sources", multiple=True, required=True, callback=_source, metavar="KIND=PATH",
    help="wikipedia=DUMP, wikiextractor=DIR, books=DIR, jsonl=FILE, warc=FILE, text=DIR, parquet=FILE, arrow=FILE,"
    " docstrings=PACKAGE,… ; a file, a directory or a pattern, local or s3://, gs://; may be repeated.",
)  # fmt: skip
@click.option(
    "--field", "fields", multiple=True, callback=_field, metavar="NAME=COLUMN",
    help="What jsonl, parquet and arrow sources call text, id or title.",
)  # fmt: skip
@click.option("--language", metavar="CODE", help="Of the text (ISO 639), or auto: each document's own.")
@click.option(
    "--dedup", type=click.Choice(["minhash", "exact", "none"]), help="Copies that are dropped: near ones too, exact ones, none."
)
@click.option(
    "--decontaminate", multiple=True, metavar="PATH", help="Task files whose text no document may hold; may be repeated."
)
@click.option("--keep-rejected", is_flag=True, default=None, help="Write what is dropped to rejected/, with reason and step.")
@click.option("--on-error", type=click.Choice(["stop", "quarantine"]), help="What a damaged file does.")
@click.option("--max-rejected-share", type=float, metavar="SHARE", help="Stop if more than this share cannot be read (0 to 1).")
@click.option(
    "--explain", metavar="TITLE", help="Show what each step does to the document of this title (or id), and write nothing."
)
@options(*runner_options)
@click.option("--out", metavar="DIR", help="The artifact's directory.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any other config field of the stage.")
@click.option("--force", is_flag=True, help="Make it again, whatever is there.")
@json_option
def corpus(
    sources: list[dict[str, Any]],
    fields: dict[str, str],
    language: str | None,
    dedup: str | None,
    decontaminate: tuple[str, ...],
    keep_rejected: bool | None,
    on_error: str | None,
    max_rejected_share: float | None,
    explain: str | None,
    workers: int | None,
    runner: str | None,
    beam_options: tuple[str, ...],
    out: str | None,
    settings: tuple[str, ...],
    force: bool,
    as_json: bool,
    **more: Any,
) -> None:
    """Clean, filter and deduplicate raw text into a corpus.

    The artifact's card.html says what is in it, and what was dropped on the way and why.
    """
    values = {"sources": _named(sources, fields)} | given(
        language=language,
        dedup=dedup,
        decontaminate=decontaminate,
        keep_rejected=keep_rejected,
        on_error=on_error,
        max_rejected_share=max_rejected_share,
    )
    if explain is not None:
        from flows.views.explanation import show

        show(values, settings, explain, as_json=as_json)
        return
    if out is None:
        raise click.UsageError("missing option --out: the directory to write to (or --explain TITLE to write nothing)")
    execution = given(workers=workers, runner=runner, beam_options=beam_options)
    run_stage("corpus", values, {}, execution, out=out, settings=settings, force=force, as_json=as_json, **more)
