"""`cloze champion`: which checkpoint is the best so far, since when and why, and what it was made from."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import click

from flows.commands.common import emit, json_option

if TYPE_CHECKING:
    from flows.night.journal import Champion, Journal


@click.command()
@click.option("--rollback", is_flag=True, help="Make the champion before this one champion again.")
@click.option("--why", default="by hand", show_default=True, help="With --rollback: the reason, for the history.")
@json_option
def champion(rollback: bool, why: str, as_json: bool) -> None:
    """Show the champion, whom it replaced and why, and its lineage back to the source files."""
    from flows.graph import plan
    from flows.night import champion as champions
    from flows.night.journal import Journal

    journal = Journal(plan.runs_directory())
    if rollback:
        champions.roll_back(journal, why)
    notes = champions.settle(journal)
    now = journal.champion()
    content = _content(journal, now)
    for sentence in notes:
        click.echo(sentence, err=True)
    if as_json:
        emit(content)
    else:
        _show(content)


def _content(journal: Journal, now: Champion | None) -> dict[str, Any]:
    from flows.commands.lineage import tree_of
    from flows.night import champion as champions

    changes = journal.changes()
    history = [
        {
            "time": change.time, "kind": change.kind, "champion": change.champion.told, "fingerprint": change.champion.key,
            "replaced": change.replaced.told if change.replaced else None, "why": change.why,
        }
        for change in changes
    ]  # fmt: skip
    name, version = os.environ.get("CLOZE_MODEL") or "cloze", journal.version()
    if now is None:
        empty = dict.fromkeys(("checkpoint", "fingerprint", "run", "step", "since", "why", "replaced", "lineage"))
        return {"name": name, "version": None, **empty, "metrics": {}, "history": history}
    replaced = changes[-1].replaced
    return {
        "name": name,
        "version": version,
        "checkpoint": champions.place(journal, now),
        "fingerprint": now.key,
        "run": now.run,
        "step": now.step,
        "metrics": dict(now.scores),
        "since": changes[-1].time,
        "why": changes[-1].why,
        "replaced": {"fingerprint": replaced.key, "run": replaced.run, "step": replaced.step} if replaced else None,
        "history": history,
        "lineage": tree_of(now.key, now.checkpoint),
    }


def _show(content: dict[str, Any]) -> None:
    from flows.commands.lineage import print_tree

    if content["fingerprint"] is None:
        click.echo("No champion yet; `cloze nightly` evaluates what checkpoints there are and makes the best one champion.")
        return
    version = (
        f", version {content['version']} of {content['name']} in MLflow" if content["version"] else ", not yet told to MLflow"
    )
    click.echo(f"{content['run']} step {content['step']:,}{version}")
    click.echo(f"  since       {_time(content['since'])}")
    click.echo(f"  why         {content['why']}")
    if content["metrics"]:
        click.echo(f"  scores      {', '.join(f'{task} {score:.1f}' for task, score in content['metrics'].items())}")
    click.echo(f"  checkpoint  {content['checkpoint'] or 'gone'}")
    if len(content["history"]) > 1:
        click.echo("\nbefore")
        for change in reversed(content["history"][:-1]):
            click.echo(f"  {_time(change['time'])}  {change['champion']}: {change['why']}")
    click.echo("\nmade from")
    print_tree(content["lineage"], 1)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
