"""The nightly flow: `cloze nightly` with the suite's nodes as task runs.

The trend page is published on the flow run's page. The deployment's schedule has a cron line and a
time zone; its concurrency limit cancels a run that starts while another is in progress. After
downtime, Prefect starts a late run for each missed one: the first does the work, the others return
at once because they were due before it started. `since` makes up all of them.
"""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.runtime import deployment, flow_run
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelled, Completed, Failed
from pydantic import Field
from rich.console import Console

from cloze.core.errors import ClozeError, StoppedError
from cloze.core.humanize import format_number
from cloze.core.places import runs_directory
from cloze.core.secrets import redact
from cloze.flows.graph import overrides, schedule
from cloze.flows.nightly import nightly_run, suite
from cloze.flows.nightly.missed import NO_SCHEDULE
from cloze.flows.nightly.result import NightlyResult
from cloze.flows.prefect import flow_state
from cloze.flows.prefect import parameters as form
from cloze.flows.prefect.automations import EVALUATED
from cloze.flows.prefect.graph_run import OPTIONS, run_as_tasks, watch_parent
from cloze.flows.prefect.node import install_log_filter, markdown_table
from cloze.flows.prefect.publishing import ArtifactPublisher
from cloze.flows.prefect.schedules import night_schedule
from cloze.flows.run import server_addresses
from cloze.flows.run.session import RunSession


@flow(
    name="nightly-evaluation",
    description="Evaluate new checkpoints of all runs, apply the gate, draw the trend page.",
    **OPTIONS,
)
def nightly_evaluation(
    config: Annotated[str, Field(min_length=1)] = suite.NIGHT,
    since: form.OptionalText = None,
    overrides: form.Overrides = form.NO_OVERRIDES,
    retries: form.Retries = 2,
) -> State[Any]:
    """Evaluate new checkpoints and compare the best with the champion.

    Args:
        config: Suite: night, a YAML file on the worker's machine, or the config of any run.
        since: Make up the nights that were missed since then: 2026-11-20, 36h or 7d. Empty: only
            new checkpoints.
    """
    install_log_filter()
    if deployment.id is not None:
        watch_parent()
    return flow_state.settled(_end(config, since, overrides, retries))


def _end(config: str, since: str | None, values: dict[str, Any], retries: int) -> State[Any]:
    try:
        outcome = _evaluate(config, since, values, retries)
    except StoppedError as error:
        return Cancelled(message=str(error))
    except ClozeError as error:
        get_run_logger().error("%s", error)
        return Failed(message=redact(str(error)))
    finally:
        flow_state.ignore_suspend()
    trend = f"; trend: {_trend_page(outcome)}"
    if outcome.errors:
        message = schedule.describe_error(schedule.combine_errors(outcome.errors))
        return Failed(message=redact(message + trend))
    if not outcome.evaluated:
        return Completed(message=redact(outcome.summary))
    return Completed(name=EVALUATED, message=redact(outcome.summary + trend))


def _evaluate(
    config: str, since: str | None, values: dict[str, Any], retries: int
) -> NightlyResult:
    def run(session: RunSession) -> None:
        with session:
            run_as_tasks(session, retries)

    scheduled_start = None if since else flow_run.scheduled_start_time
    outcome = nightly_run.nightly_run(
        suite.load(config, overrides.nest(values)),
        since=since or None,
        schedule=night_schedule(PREFECT_API_URL.value()) if since else NO_SCHEDULE,
        scheduled_start=scheduled_start.timestamp() if scheduled_start is not None else None,
        run=run,
        screen=Console(quiet=True),
    )
    log = get_run_logger()
    for warning in outcome.warnings:
        log.warning("%s", warning)
    log.info("%s", outcome.summary)
    with ArtifactPublisher(str(flow_run.id)) as publisher:
        publisher.markdown("night", _page(outcome), outcome.summary)
    return outcome


def _trend_page(outcome: NightlyResult) -> str:
    """Return its address on the dashboard, or else its path: browsers open no file from http."""
    dashboard = server_addresses.servers(runs_directory()).get("page")
    return f"{dashboard}/trend" if dashboard else str(outcome.trend)


def _page(outcome: NightlyResult) -> str:
    """Return the markdown page with the result and the path of the trend page."""
    lines = [outcome.message + "."]
    if outcome.decision:
        lines.append(f"**{outcome.decision.why}**")
    if outcome.trend:
        lines.append(
            f"Trend page: {_trend_page(outcome)}, also in MLflow, as a file of the nightly run"
        )
    if outcome.evaluated:
        head = ("checkpoint", "step", "scores", "perplexity")
        lines.append(markdown_table(head, list(map(_row, outcome.evaluated))))
    return "\n\n".join(lines)


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    scores = ", ".join(
        f"{task} {100 * score['mean']:.1f}" for task, score in result["scores"].items()
    )
    perplexity = "" if result["perplexity"] is None else format_number(result["perplexity"])
    return result["run"], f"{result['step']:,}", scores, perplexity
