"""The nightly flow: the same night as `cloze nightly`, with the suite's nodes as task runs and the trend page as the flow run's own.

The deployment's schedule has a cron line and a time zone; its concurrency limit cancels a night that begins while another goes on. Of
nights that were missed (server or worker down) each has a late run, and all of them run when the worker is back: the first one does the
work, and those after it were due before it began, so they do nothing.
"""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled, Completed, Failed
from pydantic import WithJsonSchema
from rich.console import Console

from flows.graph import addresses, overrides, plan, schedule
from flows.night import night, suite
from flows.night.journal import DIRECTORY
from flows.night.outcome import Outcome
from flows.night.trend import FILE
from flows.prefect import node as nodes
from flows.prefect import orphans
from flows.prefect import parameters as form
from flows.prefect.automations import EVALUATED
from flows.prefect.graph_run import OPTIONS, made_in_tasks
from flows.prefect.telling import Teller
from flows.session import Session
from pipeline.core.errors import ClozeError, Stopped
from pipeline.core.humanize import short
from pipeline.core.secrets import masked

Config = Annotated[
    str,
    WithJsonSchema(
        {
            "type": "string",
            "minLength": 1,
            "description": "The suite: night for the one that Cloze brings, a YAML file on the worker's machine, or any run's config.",
        }
    ),
]
Since = Annotated[
    str | None,
    WithJsonSchema(
        {
            "type": "string",
            "description": "Look at all checkpoints written since, seen or not: 2026-11-20, 36h or 7d. Empty: at what is new.",
        }
    ),
]


@flow(
    name="nightly-evaluation",
    description="All checkpoints that are new, of any run: the suite, the gate, the champion, the trend page.",
    **OPTIONS,
)
def nightly_evaluation(
    config: Config = suite.NIGHT,
    since: Since = None,
    overrides: form.Overrides = form.NO_OVERRIDES,
    retries: form.Retries = 2,
) -> State[Any]:
    """Evaluate what is new since the last night, and compare the best with the champion."""
    nodes.quieten()
    if deployment.id is not None:
        orphans.watch_parent()
    try:
        outcome = _hold(config, since, overrides, retries)
    except Stopped as error:
        return Cancelled(message=str(error))
    except ClozeError as error:
        get_run_logger().error("%s", error)
        return Failed(message=masked(str(error)))
    if outcome.errors:
        return Failed(message=masked(f"{schedule.sentence(schedule.told(outcome.errors))}; trend: {link(outcome)}"))
    if not outcome.evaluated:
        return Completed(message=masked(outcome.summary))
    return Completed(name=EVALUATED, message=masked(f"{outcome.summary}; trend: {link(outcome)}"))


def _hold(config: str, since: str | None, values: dict[str, Any], retries: int) -> Outcome:
    def run(session: Session) -> None:
        with session:
            made_in_tasks(session, retries)

    due = flow_run.scheduled_start_time
    outcome = night.hold(
        suite.load(config, overrides.nest(values)),
        since=since or None,
        due=due.timestamp() if due is not None else None,
        run=run,
        screen=Console(quiet=True),
    )
    log = get_run_logger()
    for note in outcome.notes:
        log.warning("%s", note)
    log.info("%s", outcome.summary)
    with Teller(str(flow_run.id), by_worker=deployment.id is not None) as teller:
        teller.markdown("night", _page(outcome), outcome.summary)
    return outcome


def _page(outcome: Outcome) -> str:
    """What came of the night, and where its trend page is."""
    lines = [outcome.told + "."]
    if outcome.decision:
        lines.append(f"**{outcome.decision.why}**")
    if outcome.trend:
        lines.append(f"Trend page: [{outcome.trend}]({link(outcome)})")
    if outcome.evaluated:
        lines.append(
            "| checkpoint | step | scores | perplexity |\n| --- | --- | --- | --- |\n" + "\n".join(map(_row, outcome.evaluated))
        )
    return "\n\n".join(lines)


def link(outcome: Outcome) -> str:
    """The trend page's address: on the page of runs where there is one, else the file's."""
    page = addresses.page(plan.runs_directory())
    return f"{page}/files/{DIRECTORY}/{FILE}" if page else f"file://{outcome.trend}"


def _row(result: dict[str, Any]) -> str:
    scores = ", ".join(f"{task} {100 * score['mean']:.1f}" for task, score in result["scores"].items())
    perplexity = "" if result["perplexity"] is None else short(result["perplexity"])
    return f"| {result['run'].replace('|', ' ')} | {result['step']:,} | {scores} | {perplexity} |"


if __name__ == "__main__":
    nightly_evaluation()
