"""Commands `nightly` and `champion`: evaluation of new checkpoints, and its result."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from cloze.core import places
from cloze.core.errors import UsageError
from cloze.core.humanize import on_one_line
from cloze.flows.commands.base.options import emit, json_option
from cloze.flows.commands.run import complete_config, set_option
from cloze.flows.commands.services import lineage_tree, print_tree

if TYPE_CHECKING:
    from rich.table import Table

    from cloze.flows.nightly.journal import Champion, Journal
    from cloze.flows.nightly.missed import Schedule
    from cloze.flows.nightly.result import NightlyResult


@click.command()
@click.argument("config", default="night", shell_complete=complete_config)
@set_option
@click.option(
    "--since",
    metavar="WHEN",
    help="Make up the nights that were missed since then: 2026-11-20, 36h or 7d. Default: only the"
    " new checkpoints.",
)
@click.option(
    "-n", "--dry-run", "dry_run", is_flag=True, help="Print what would be evaluated, and exit."
)
@json_option
def nightly(
    config: str, overrides: dict[str, Any], since: str | None, dry_run: bool, as_json: bool
) -> None:
    """Evaluate new checkpoints against the champion.

    Also draws the trend page. CONFIG is a YAML file with a section night, or the config of any run.
    Default: the built-in suite.
    """
    from cloze.flows.graph.schedule import combine_errors, describe_error
    from cloze.flows.nightly import nightly_run, suite

    evaluations = suite.load(config, overrides)
    missed: dict[str, Any] = {} if since is None else {"since": since, "schedule": _schedule()}
    if dry_run:
        preview = nightly_run.preview(evaluations, **missed)
        if as_json:
            emit(preview)
        else:
            _show_preview(preview)
        return
    result = nightly_run.nightly_run(evaluations, **missed)
    _show_result(result)
    error = combine_errors(result.errors) if result.errors else None
    if as_json:
        emit(result.as_json())
        if error is not None:  # raised, it would be a second JSON object
            click.echo(f"cloze: {describe_error(error)}", err=True)
            click.get_current_context().exit(getattr(error, "exit_code", 1))
    elif error is not None:
        raise error


def _schedule() -> Schedule:
    """Return the schedule of the nights, of the Prefect server that is known or of the file."""
    from cloze.core.places import runs_directory
    from cloze.flows.prefect.environment import prepare_prefect
    from cloze.flows.run.server_addresses import api

    prepare_prefect()
    server = api(runs_directory())  # before Prefect reads its settings
    from cloze.flows.prefect.schedules import night_schedule

    return night_schedule(server)


def _show_preview(preview: dict[str, Any]) -> None:
    from cloze.core.humanize import format_duration
    from cloze.flows.views import terminal

    out = terminal.output()
    current = preview["champion"]
    name = f"{current['run']} step {current['step']:,}" if current else "none yet"
    out.print(f"champion: {name}", markup=False)
    if preview["about"]:
        out.print(preview["about"], markup=False, soft_wrap=True)
    if count := len(preview["given_up"]):
        out.print(f"{count} {preview['why_given_up']}.", markup=False, soft_wrap=True)
    if not preview["new"]:
        out.print("No new checkpoints.")
        return
    plans = {
        **dict.fromkeys(preview["passed"], f"skip: {preview['why_passed']}"),
        **dict.fromkeys(
            preview["waiting"], f"wait for the next night: night.limit is {preview['limit']}"
        ),
        **dict.fromkeys(preview["chosen"], "evaluate"),
    }
    table = terminal.table_of(("new checkpoint", "step", "what"), right=("step",))
    for checkpoint in preview["new"]:
        night = preview["nights"].get(checkpoint["key"])
        what = plans[checkpoint["key"]] + (f" (night {night})" if night else "")
        table.add_row(checkpoint["run"], f"{checkpoint['step']:,}", what)
    out.print(table, markup=False)
    nodes = [node for node in preview["nodes"] if not node["cached"]]
    seconds = [node["seconds"] for node in nodes if node["seconds"] is not None]
    is_known = nodes and len(seconds) == len(nodes)
    estimate = f"; they took {format_duration(sum(seconds))} the last time" if is_known else ""
    out.print(f"\n{len(nodes)} of {len(preview['nodes'])} nodes would run{estimate}.")


def _show_result(result: NightlyResult) -> None:
    from rich.markup import escape

    from cloze.flows.views import terminal

    out = terminal.console()
    if result.evaluated:
        out.print()
        out.print(_score_table(result.evaluated), markup=False)
        out.print()
    out.print(f"{escape(result.message)}.", soft_wrap=True)
    if result.decision:
        out.print(escape(result.decision.why), soft_wrap=True)
    if result.champion:
        out.print(f"champion: {escape(result.champion.describe)}")
    if result.trend:
        out.print(f"trend: {result.trend}", soft_wrap=True, markup=False)


def _score_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of the scores of evaluated checkpoints, in hundredths."""
    from cloze.core.humanize import format_number
    from cloze.flows.views import terminal

    tasks = list(dict.fromkeys(task for row in rows for task in row["scores"]))
    columns = ("step", *tasks, "perplexity")
    table = terminal.table_of(("checkpoint", *columns), right=columns)
    for row in rows:
        scores = [row["scores"].get(task) for task in tasks]
        cells = [
            f"{100 * score['mean']:.1f} ± {100 * score['deviation']:.1f}" if score else "–"
            for score in scores
        ]
        perplexity = "–" if row["perplexity"] is None else format_number(row["perplexity"])
        table.add_row(row["run"], f"{row['step']:,}", *cells, perplexity)
    return table


@click.command()
@click.option("--rollback", is_flag=True, help="Make the previous champion the champion again.")
@click.option(
    "--promote",
    metavar="CHECKPOINT",
    help="Make this checkpoint, or the newest one of a training, the champion.",
)
@click.option(
    "--reason", help="Reason for --promote or --rollback, for the history. Default: by hand."
)
@json_option
def champion(rollback: bool, promote: str | None, reason: str | None, as_json: bool) -> None:
    """Show the champion and its history, or roll it back.

    The lineage leads back to the source files.
    """
    from cloze.flows.nightly import journal as journals
    from cloze.flows.nightly import registration
    from cloze.flows.run.targets import resolve_path
    from cloze.flows.views import terminal

    journal = journals.Journal(places.runs_directory())
    if rollback and promote:
        raise UsageError("--promote and --rollback exclude each other; give one of them")
    if reason is not None and not (rollback or promote):
        raise UsageError("--reason is that of --promote or --rollback; give one of them")
    reason = reason or "by hand"
    if rollback:
        journals.roll_back(journal, reason)
    if promote:
        journals.promote(journal, resolve_path(promote), reason)
    with terminal.saying(f"{journal.path} is up to date; MLflow, which gets the alias, is slow"):
        notes = registration.try_to_sync(journal)
    for note in notes:
        terminal.console().print(note, markup=False, soft_wrap=True)
    content = _champion_content(journal, journal.champion())
    if as_json:
        emit(content)
    else:
        _show_champion(content)


def _champion_content(journal: Journal, now: Champion | None) -> dict[str, Any]:
    from cloze.flows.nightly.journal import champion_path
    from cloze.flows.tracking.models import registered_name

    changes = journal.changes()
    history = [
        {
            "time": change.time, "kind": change.kind, "champion": change.champion.describe,
            "fingerprint": change.champion.key,
            "replaced": change.replaced.describe if change.replaced else None, "why": change.reason,
        }
        for change in changes
    ]  # fmt: skip
    content = {"name": registered_name(), "history": history}
    if now is None:
        empty = dict.fromkeys(
            "version checkpoint fingerprint run step since why replaced lineage".split()
        )
        return {**content, **empty, "metrics": {}}
    old = changes[-1].replaced
    return {
        **content,
        "version": journal.version(),
        "checkpoint": champion_path(journal, now),
        "fingerprint": now.key, "run": now.run, "step": now.step, "metrics": dict(now.scores),
        "since": changes[-1].time, "why": changes[-1].reason,
        "replaced": {"fingerprint": old.key, "run": old.run, "step": old.step} if old else None,
        "lineage": lineage_tree(now.key, now.checkpoint),
    }  # fmt: skip


def _show_champion(content: dict[str, Any]) -> None:
    if content["fingerprint"] is None:
        click.echo(
            "No champion yet. `cloze nightly` evaluates the checkpoints and makes the best one the"
            " champion."
        )
        return
    version = "not yet registered in MLflow"
    if content["version"]:
        version = f"version {content['version']} of {content['name']} in MLflow"
    click.echo(on_one_line(f"{content['run']} step {content['step']:,}, {version}"))
    click.echo(f"  since       {_time(content['since'])}")
    click.echo(on_one_line(f"  why         {content['why']}"))
    if content["metrics"]:
        scores = ", ".join(f"{task} {score:.1f}" for task, score in content["metrics"].items())
        click.echo(f"  scores      {scores}")
    click.echo(on_one_line(f"  checkpoint  {content['checkpoint'] or 'deleted'}"))
    if len(content["history"]) > 1:
        click.echo("\nbefore")
        for change in reversed(content["history"][:-1]):
            line = f"  {_time(change['time'])}  {change['champion']}: {change['why']}"
        click.echo(on_one_line(line))
    click.echo("\nmade from")
    print_tree(content["lineage"], 1)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
