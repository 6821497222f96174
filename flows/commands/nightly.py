"""Commands `nightly` and `champion`: evaluation of new checkpoints, and its result."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import click

from cloze.core.errors import UsageError
from cloze.flows.commands.artifacts import lineage_tree, print_tree
from cloze.flows.commands.base.options import emit, json_option
from cloze.flows.commands.run import set_option

if TYPE_CHECKING:
    from cloze.flows.nightly.journal import Champion, Journal
    from cloze.flows.nightly.result import NightlyResult


@click.command()
@click.argument("config", default="night")
@set_option
@click.option(
    "--since",
    metavar="WHEN",
    help=(
        "Evaluate the checkpoints written since then: 2026-11-20, 36h or 7d. Default: since the "
        "last night."
    ),
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
    from cloze.flows.graph.schedule import combine_errors
    from cloze.flows.nightly import nightly_run, suite

    wanted = suite.load(config, overrides)
    if dry_run:
        shown = nightly_run.preview(wanted, since)
        if as_json:
            emit(shown)
        else:
            _show_preview(shown)
        return
    outcome = nightly_run.nightly_run(wanted, since=since)
    _show(outcome)
    if as_json:
        emit(outcome.as_json())
    if outcome.errors:
        raise combine_errors(outcome.errors)


def _show_preview(preview: dict[str, Any]) -> None:
    from rich.console import Console

    from cloze.core.humanize import format_duration
    from cloze.flows.views import terminal

    out = Console(highlight=False)
    champion = preview["champion"]
    out.print(
        f"champion: {champion['run']} step {champion['step']:,}"
        if champion
        else "champion: none yet"
    )
    if not preview["new"]:
        out.print("Nothing new: no checkpoint has come.")
        return
    table = terminal.table_of(("new checkpoint", "step", "what"), right=("step",))
    for found in preview["new"]:
        what = next(
            (word for word in ("chosen", "waiting") if found["key"] in preview[word]), "passed over"
        )
        table.add_row(
            found["run"],
            f"{found['step']:,}",
            {"chosen": "evaluate", "waiting": "wait for the next night"}.get(what, what),
        )
    out.print(table)
    todo = [node for node in preview["nodes"] if not node["cached"]]
    known = [node["seconds"] for node in todo if node["seconds"] is not None]
    took = (
        f"; the last time they took {format_duration(sum(known))}"
        if todo and len(known) == len(todo)
        else ""
    )
    out.print(f"\n{len(todo)} of {len(preview['nodes'])} nodes would run{took}.")


def _show(outcome: NightlyResult) -> None:
    from rich.console import Console
    from rich.markup import escape

    from cloze.core.humanize import format_number
    from cloze.flows.views import terminal

    out = Console(stderr=True, highlight=False)
    if outcome.evaluated:
        tasks = list(
            dict.fromkeys(task for result in outcome.evaluated for task in result["scores"])
        )
        out.print()
        table = terminal.table_of(
            ("checkpoint", "step", *tasks, "perplexity"), right=("step", *tasks, "perplexity")
        )
        for result in outcome.evaluated:
            scores = [result["scores"].get(task) for task in tasks]
            shown = [
                f"{100 * score['mean']:.1f} ± {100 * score['deviation']:.1f}" if score else "–"
                for score in scores
            ]
            perplexity = (
                "–" if result["perplexity"] is None else format_number(result["perplexity"])
            )
            table.add_row(result["run"], f"{result['step']:,}", *shown, perplexity)
        out.print(table)
        out.print()
    out.print(f"{escape(outcome.told)}.", soft_wrap=True)
    if outcome.decision:
        out.print(escape(outcome.decision.why), soft_wrap=True)
    if outcome.champion:
        out.print(f"champion: {escape(outcome.champion.describe)}")
    if outcome.trend:
        out.print(f"trend: {outcome.trend}", soft_wrap=True, markup=False)


@click.command()
@click.option("--rollback", is_flag=True, help="Make the previous champion the champion again.")
@click.option(
    "--promote",
    metavar="CHECKPOINT",
    help="Make this checkpoint, or the newest one of a training, the champion.",
)
@click.option(
    "--reason",
    default="by hand",
    show_default=True,
    help="Reason for --promote or --rollback, for the history.",
)
@json_option
def champion(rollback: bool, promote: str | None, reason: str, as_json: bool) -> None:
    """Show the champion and its history, or roll it back.

    The lineage leads back to the source files.
    """
    from cloze.flows.graph import plan
    from cloze.flows.nightly import champion as champions
    from cloze.flows.nightly.journal import Journal

    journal = Journal(plan.runs_directory())
    if rollback and promote:
        raise UsageError("--promote and --rollback exclude each other; give one of them")
    if rollback:
        champions.roll_back(journal, reason)
    if promote:
        champions.promote(journal, promote, reason)
    notes = champions.try_to_sync(journal)
    now = journal.champion()
    content = _content(journal, now)
    for sentence in notes:
        click.echo(sentence, err=True)
    if as_json:
        emit(content)
    else:
        _show(content)


def _content(journal: Journal, now: Champion | None) -> dict[str, Any]:
    from cloze.flows.nightly import champion as champions

    changes = journal.changes()
    history = [
        {
            "time": change.time, "kind": change.kind, "champion": change.champion.describe,
            "fingerprint": change.champion.key,
            "replaced": change.replaced.describe if change.replaced else None, "why": change.why,
        }
        for change in changes
    ]  # fmt: skip
    name, version = os.environ.get("CLOZE_REGISTERED_MODEL") or "cloze", journal.version()
    if now is None:
        empty = dict.fromkeys(
            ("checkpoint", "fingerprint", "run", "step", "since", "why", "replaced", "lineage")
        )
        return {"name": name, "version": None, **empty, "metrics": {}, "history": history}
    replaced = changes[-1].replaced
    return {
        "name": name,
        "version": version,
        "checkpoint": champions.champion_path(journal, now),
        "fingerprint": now.key,
        "run": now.run,
        "step": now.step,
        "metrics": dict(now.scores),
        "since": changes[-1].time,
        "why": changes[-1].why,
        "replaced": {"fingerprint": replaced.key, "run": replaced.run, "step": replaced.step}
        if replaced
        else None,
        "history": history,
        "lineage": lineage_tree(now.key, now.checkpoint),
    }


def _show(content: dict[str, Any]) -> None:

    if content["fingerprint"] is None:
        click.echo(
            "No champion yet; `cloze nightly` evaluates what checkpoints there are and makes the "
            "best one champion."
        )
        return
    version = (
        f", version {content['version']} of {content['name']} in MLflow"
        if content["version"]
        else ", not yet told to MLflow"
    )
    click.echo(f"{content['run']} step {content['step']:,}{version}")
    click.echo(f"  since       {_time(content['since'])}")
    click.echo(f"  why         {content['why']}")
    if content["metrics"]:
        click.echo(
            f"  scores      "
            f"{', '.join(f'{task} {score:.1f}' for task, score in content['metrics'].items())}"
        )
    click.echo(f"  checkpoint  {content['checkpoint'] or 'gone'}")
    if len(content["history"]) > 1:
        click.echo("\nbefore")
        for change in reversed(content["history"][:-1]):
            click.echo(f"  {_time(change['time'])}  {change['champion']}: {change['why']}")
    click.echo("\nmade from")
    print_tree(content["lineage"], 1)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
