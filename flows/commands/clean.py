"""The command `clean`."""

from __future__ import annotations

import shutil
import time
from typing import Any

import click

from cloze.core.errors import UsageError, did_you_mean
from cloze.core.places import runs_directory
from cloze.flows.commands.base.field_options import FiniteRange
from cloze.flows.commands.base.options import complete_from, emit, json_option

SHOWN = 30  # rows of the table


def _run_names(ctx: click.Context) -> list[str]:
    from cloze.flows.run import targets

    return targets.run_names(runs_directory())


@click.command()
@click.argument("discarded", nargs=-1, metavar="[RUN]...", shell_complete=complete_from(_run_names))
@click.option(
    "--unused-days",
    type=FiniteRange(min=0),
    default=0.0,
    metavar="N",
    help="Keep what was used within this many days. Default: 0.",
)
@click.option("--delete", is_flag=True, help="Remove them; without this option nothing changes.")
@json_option
def clean(discarded: tuple[str, ...], unused_days: float, delete: bool, as_json: bool) -> None:
    """Show all artifacts by size; remove what nothing needs.

    Results of earlier configs and unfinished builds can go; with RUN, also that run's results.
    Kept are the current results of other runs, champions, whatever a run in progress uses, and
    everything from which those were made.
    """
    from cloze.flows.nightly import journal
    from cloze.flows.run import retention, source

    runs = runs_directory()
    known = _run_names(click.get_current_context())
    for name in discarded:
        if name not in known:
            raise UsageError(f"no run {name!r} in {runs}; {did_you_mean(name, known)}")
    champions = journal.champion_checkpoints(journal.Journal(runs))
    how: dict[str, Any] = {"discarded": discarded, "unused_days": unused_days}
    found = retention.survey(runs, champions, **how)
    unneeded = [stored for stored in found if not stored.needed_for]
    removed = retention.remove(runs, unneeded, champions, **how) if delete else []
    sources = retention.unneeded_sources(runs, remove=delete)
    if delete:
        source.forget_old(runs)
    free = shutil.disk_usage(runs if runs.exists() else ".").free
    if as_json:
        rows = [
            {
                "artifact": str(stored.path),
                "bytes": stored.size,
                "used": stored.used,
                "needed_for": stored.needed_for,
                "removed": stored in removed,
            }
            for stored in found
        ]
        emit({"artifacts": rows, "sources": [str(path) for path in sources], "free_bytes": free})
    else:
        _show(found, unneeded, removed, free, delete)
        if sources:
            note = "removed" if delete else "not needed"
            click.echo(f"Copies of Cloze's source {note}: {len(sources):,}")


def _show(found: Any, unneeded: Any, removed: Any, free: int, delete: bool) -> None:
    from cloze.core.humanize import agree, format_bytes, format_duration
    from cloze.flows.views import terminal

    table = terminal.table_of(("size", "used", "artifact", "needed for"), right=("size", "used"))
    for stored in found[:SHOWN]:
        reasons = stored.needed_for
        more = f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        why = f"{reasons[0]}{more}" if reasons else ("removed" if stored in removed else "nothing")
        age = format_duration(time.time() - stored.used)
        table.add_row(format_bytes(stored.size), f"{age} ago", stored.name, why)
    out = terminal.output()
    out.print(table, markup=False)
    if len(found) > SHOWN:
        out.print(f"… and {len(found) - SHOWN:,} smaller ones", markup=False)
    size = format_bytes(sum(stored.size for stored in (removed if delete else unneeded)))
    count = f"{len(unneeded):,} of {len(found):,} artifacts are not needed"
    if delete:
        note = agree(f"{len(removed):,} artifacts removed, {size}; {format_bytes(free)} are free")
        if left := len(unneeded) - len(removed):
            note += f"; {left:,} stay: a build has begun in them, or they cannot be written to"
    elif unneeded:
        note = f"{count}, {size}; {format_bytes(free)} are free. Remove them with --delete."
    else:
        note = f"{count}; {format_bytes(free)} are free."
    out.print(note, markup=False)
