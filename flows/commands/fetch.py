"""`cloze fetch`: real dumps and books, where the internet is."""

from __future__ import annotations

from pathlib import Path

import click

from flows.commands.common import emit, json_option


@click.command()
@click.argument("collection")
@click.option("--to", "directory", metavar="DIR", help="Where to put it; by default ./data/COLLECTION.")
@click.option("--mirror", metavar="URL", help="Another address with the same layout.")
@json_option
def fetch(collection: str, directory: str | None, mirror: str | None, as_json: bool) -> None:
    """Download COLLECTION (simplewiki, enwiki, gutenberg), going on where an earlier try stopped."""
    from flows.downloads import COLLECTIONS, download
    from flows.views import terminal
    from flows.views.live import StageDisplay
    from pipeline.core.errors import UsageError, did_you_mean

    if collection not in COLLECTIONS:
        raise UsageError(f"unknown collection {collection!r}; {did_you_mean(collection, COLLECTIONS)}")
    target = Path(directory or Path("data") / collection)
    files = []
    for remote in COLLECTIONS[collection](mirror):
        with StageDisplay(remote.name, terminal.console()) as display:
            files.append(str(download(remote, target, lambda done, total, show=display: show.progress(done, total, "B", {}))))  # type: ignore[misc]
    if as_json:
        emit({"collection": collection, "directory": str(target), "files": files})
    else:
        click.echo(f"{len(files)} file(s) in {target}")
