"""`cloze nightly`: what the nightly flow does, from the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flows.commands.common import emit, json_option
from flows.commands.run_options import set_option

if TYPE_CHECKING:
    from flows.night.outcome import Outcome


@click.command()
@click.argument("config", default="night")
@set_option
@click.option(
    "--since",
    metavar="WHEN",
    help="Look at all checkpoints written since: 2026-11-20, 36h or 7d; without it, since the last night.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@json_option
def nightly(config: str, overrides: dict[str, Any], since: str | None, dry_run: bool, as_json: bool) -> None:
    """Evaluate all checkpoints that are new, compare the best with the champion, and draw the trend page.

    CONFIG is a YAML file with a section night, or any run's config; without it, the suite that Cloze brings.
    """
    from flows.graph.schedule import told
    from flows.night import night, suite
    from flows.night.preview import preview

    wanted = suite.load(config, overrides)
    if dry_run:
        shown = preview(wanted, since)
        if as_json:
            emit(shown)
        else:
            _show_preview(shown)
        return
    outcome = night.hold(wanted, since=since)
    _show(outcome)
    if as_json:
        emit(outcome.as_json())
    if outcome.errors:
        raise told(outcome.errors)


def _show_preview(preview: dict[str, Any]) -> None:
    from rich.console import Console

    from flows.views import terminal
    from pipeline.core.humanize import duration

    out = Console(highlight=False)
    champion = preview["champion"]
    out.print(f"champion: {champion['run']} step {champion['step']:,}" if champion else "champion: none yet")
    if not preview["new"]:
        out.print("Nothing new: no checkpoint has come.")
        return
    table = terminal.table_of(("new checkpoint", "step", "what"), right=("step",))
    for found in preview["new"]:
        what = next((word for word in ("chosen", "waiting") if found["key"] in preview[word]), "passed over")
        table.add_row(
            found["run"], f"{found['step']:,}", {"chosen": "evaluate", "waiting": "wait for the next night"}.get(what, what)
        )
    out.print(table)
    todo = [node for node in preview["nodes"] if not node["cached"]]
    known = [node["seconds"] for node in todo if node["seconds"] is not None]
    took = f"; the last time they took {duration(sum(known))}" if todo and len(known) == len(todo) else ""
    out.print(f"\n{len(todo)} of {len(preview['nodes'])} nodes would run{took}.")


def _show(outcome: Outcome) -> None:
    from rich.console import Console
    from rich.markup import escape

    from flows.views import terminal
    from pipeline.core.humanize import short

    out = Console(stderr=True, highlight=False)
    if outcome.evaluated:
        tasks = list(dict.fromkeys(task for result in outcome.evaluated for task in result["scores"]))
        out.print()
        table = terminal.table_of(("checkpoint", "step", *tasks, "perplexity"), right=("step", *tasks, "perplexity"))
        for result in outcome.evaluated:
            scores = [result["scores"].get(task) for task in tasks]
            shown = [f"{100 * score['mean']:.1f} ± {100 * score['deviation']:.1f}" if score else "–" for score in scores]
            perplexity = "–" if result["perplexity"] is None else short(result["perplexity"])
            table.add_row(result["run"], f"{result['step']:,}", *shown, perplexity)
        out.print(table)
        out.print()
    out.print(f"{escape(outcome.told)}.", soft_wrap=True)
    if outcome.decision:
        out.print(escape(outcome.decision.why), soft_wrap=True)
    if outcome.champion:
        out.print(f"champion: {escape(outcome.champion.told)}")
    if outcome.trend:
        out.print(f"trend: {outcome.trend}", soft_wrap=True)
