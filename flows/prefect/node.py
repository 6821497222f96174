"""A node as a Prefect task run: markdown pages, log, progress bar, retries."""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from html import escape
from typing import Any

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.exceptions import FailedRun
from prefect.logging import get_run_logger
from prefect.runtime import task_run
from prefect.states import Cancelled, Completed

from cloze.core import places, storage
from cloze.core.errors import ClozeError, StoppedError
from cloze.core.humanize import format_bytes, format_count, format_duration, format_number, labelled
from cloze.core.secrets import redact
from cloze.core.stages.execute import BuildResult
from cloze.core.stages.stage import Reporter
from cloze.flows.graph import nodes, plan
from cloze.flows.graph.stages import headline
from cloze.flows.machine import retry_policy
from cloze.flows.prefect.publishing import ArtifactPublisher, ProgressArtifact
from cloze.flows.run import server_addresses
from cloze.flows.run.session import RunSession
from cloze.flows.tracking import spool_state
from cloze.flows.tracking.spool import DIRECTORY, flatten, tracking_uri
from cloze.flows.views.run_tables import format_total_seconds

MOST_ROWS = 200


def plan_page(session: RunSession) -> str:
    """Return the plan as a markdown page: each node, whether it runs, why and for how long."""
    rows = []
    for step in session.steps:
        what, seconds = "**run**", format_total_seconds([session.estimates[step.name]])
        if step.cached:
            what, seconds = "–", ""
        rows.append((step.name, what, step.reason, seconds))
    table = markdown_table(("node", "what", "why", "expected"), rows)
    return f"Run `{session.config.name}` in `{session.config.directory.resolve()}`\n\n{table}"


def node_page(
    session: RunSession, step: plan.PlannedNode, result: BuildResult, build_id: str | None
) -> str:
    """Return a node's metrics and the links to its artifact, its MLflow run and its report.

    Args:
        build_id: id of the node's MLflow run; None: no run was recorded this time.
    """
    manifest = result.manifest
    artifact, runs = storage.absolute(result.artifact), places.runs_directory()
    links = [f"artifact: `{artifact}`"]
    mlflow = server_addresses.mlflow(runs)
    if mlflow and build_id:
        page = spool_state.page(runs / DIRECTORY, build_id, mlflow)
        links.append(f"MLflow: [{step.name}]({page or mlflow})")
    elif mlflow:
        links.append(f"MLflow: [{mlflow}]({mlflow})")
    else:
        links.append(f"MLflow: `{redact(tracking_uri(runs))}`")
    if report := manifest.summary.get("report"):
        links.append(f"report: `{storage.join(artifact, report)}`, in MLflow as a file of the run")
    rows = [("built in", format_duration(manifest.seconds))]
    if manifest.rows:
        rows.append(("rows", f"{manifest.rows:,}"))
    for name, value in flatten(manifest.summary):
        if value not in (None, ""):
            rows.append((name, _format(name, value)))
    rows += [(f"count {key}", f"{count:,}") for key, count in manifest.counters.items()]
    return (
        "\n".join(f"- {link}" for link in links)
        + "\n\n"
        + markdown_table(("metric", "value"), rows)
    )


def _format(name: str, value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return json.dumps(value)[:200]
    if name.endswith("_bytes") and isinstance(value, (int, float)):
        return format_bytes(value)
    return format_number(value)


def markdown_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table of at most `MOST_ROWS` rows."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows[:MOST_ROWS]]
    if len(rows) > MOST_ROWS:
        lines.append(f"\n… and {len(rows) - MOST_ROWS} more")
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Escape text for a table cell, so that a document's text is not read as markup."""
    return escape(text, quote=False).replace("|", "\\|").replace("\n", " ")


LOG_SECONDS = 30.0
BAR_SECONDS = 2.0
FIGURES = 4  # metrics per log line


@dataclass(frozen=True, slots=True)
class NodeRunContext:
    """Context of a flow run's nodes; `retries` applies to nodes whose config sets none."""

    session: RunSession
    publisher: ArtifactPublisher
    retries: int


NODE_RUN_CONTEXT: ContextVar[NodeRunContext] = ContextVar("running")


def _should_retry(task: Task[Any, Any], run: Any, state: State[Any]) -> bool:
    del run
    session = NODE_RUN_CONTEXT.get().session
    # the state's own error has lost its type, see `node`
    error = session.failures.get(task.name, state.data)
    step = session.step(task.name)
    return isinstance(error, BaseException) and session.should_retry(step, error, task.retries)


@task(cache_policy=NO_CACHE, persist_result=False, retry_condition_fn=_should_retry)
def node(name: str, why: str) -> State[Any]:
    """Run the node of that name.

    The artifact's fingerprint decides whether the node is cached. Prefect's cache cannot notice
    that a directory was removed.
    """
    context, log = NODE_RUN_CONTEXT.get(), get_run_logger()
    session, run_id = context.session, str(task_run.id)
    step = session.step(name)
    reason = "Nothing to do" if step.cached else f"Reason to run: {why}"
    log.info("%s. Artifact: %s", reason, step.artifact)
    bar = context.publisher.progress(f"{session.config.name}-{name}-progress", run_id, name)
    with TaskRunReporter(session, step, bar, log) as reporter:
        try:
            result = session.run_node(step, attempt=task_run.run_count or 1, also=reporter)
        except (StoppedError, KeyboardInterrupt) as error:
            return Cancelled(message=str(error) or _describe_stop(step, reporter))
        except ClozeError as error:
            text = nodes.with_section(str(error), step.node)
            log.error("%s", text)
            # Prefect copies the text into the state's message
            raise type(error)(redact(text)) from None
        except Exception as error:
            if redact(str(error)) != str(error):
                raise RuntimeError(redact(f"{type(error).__name__}: {error}")) from None
            raise
    summary = log_warnings(headline(result.manifest), log)
    page = node_page(session, step, result, reporter.build_id)
    context.publisher.markdown(f"{session.config.name}-{name}", page, f"{name}: {summary}", run_id)
    if result.cached:
        return Completed(name="Cached", message=f"nothing to do{summary and ': '}{summary}")
    log.info("built in %s: %s", format_duration(result.seconds), summary)
    return Completed(message=summary or "built")


def log_warnings(text: str, log: logging.Logger | logging.LoggerAdapter[Any]) -> str:
    """Log the warnings in a headline, by which Prefect's pages filter; return the rest."""
    summary, *warnings = text.split("; warning: ")
    for warning in warnings:
        log.warning("%s", warning)
    return summary


def _describe_stop(step: plan.PlannedNode, reporter: TaskRunReporter) -> str:
    if reporter.build_id is None:
        return "stopped before it started"
    seconds = reporter.seconds or step.node.execution.min_grace_seconds
    return f"stopped; it saved nothing in the grace period of {seconds:g} s"


def node_of(step: plan.PlannedNode, usual_retries: int) -> Task[[str, str], State[Any]]:
    """Return the task that runs a node, with the node's name and retries."""
    execution = step.node.execution
    retries = execution.retries if "retries" in execution.model_fields_set else usual_retries
    return node.with_options(
        name=step.name,
        task_run_name=step.name,
        retries=retries,
        retry_delay_seconds=[
            retry_policy.backoff_seconds(attempt, execution.retry_seconds)
            for attempt in range(1, retries + 1)
        ],
    )


class TaskRunReporter(Reporter):
    """Reporter of a node's progress to its task run: log lines and progress bar."""

    def __init__(
        self,
        session: RunSession,
        step: plan.PlannedNode,
        bar: ProgressArtifact,
        log: logging.Logger | logging.LoggerAdapter[Any],
    ) -> None:
        self.session, self.step, self.bar, self.log = session, step, bar, log
        self.build_id: str | None = None
        self.seconds: float | None = None  # grace period that it asked for
        self._logged = self._shown = 0.0
        self._part: Any = None
        self._warned: set[str] = set()
        self._last: tuple[float, str] | None = None
        self._logged_line = ""
        self._numbers: dict[str, float] = {}  # newest value of each, in the order of first reports

    def __enter__(self) -> TaskRunReporter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        percent, text = self._last or (0.0, "")
        if text and text != self._logged_line:
            self.log.info("%s", text)
        if kind is None and percent < 100.0 and self.build_id is not None:
            percent, text = 100.0, f"finished: {text}" if percent else "finished"
        if text:
            self.bar.set(percent, text)

    def build_started(self, build_id: str) -> None:
        self.build_id = build_id
        self.bar.set(0.0, "started")
        self._logged = time.monotonic()

    def progress(
        self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]
    ) -> None:
        warning = figures.get("warning")
        if warning and str(warning) not in self._warned:
            self._warned.add(str(warning))
            self.log.warning("%s", redact(str(warning)))
        now, step = time.monotonic(), figures.get("step")
        text = self._line(done, total, unit, figures)
        percent = 100.0 * done / total if total else 0.0
        self._last = (min(percent, 100.0), text)
        if now > self._shown + BAR_SECONDS:
            self._shown = now
            self.bar.set(*self._last)
        if now > self._logged + LOG_SECONDS or (isinstance(step, str) and step != self._part):
            self._logged, self._part, self._logged_line = now, step, text
            self.log.info("%s", text)

    def shutdown_time(self, seconds: float) -> None:
        self.seconds = seconds

    def _line(self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]) -> str:
        words = [
            str(figures[name]) for name in ("step", "note") if isinstance(figures.get(name), str)
        ]
        self._numbers |= {
            name: value
            for name, value in figures.items()
            if isinstance(value, (int, float)) and not (name.endswith("_bytes") and not value)
        }
        remaining = self.session.seconds_left(self.step.name)
        if unit:
            of_total = f"/{format_count(total)}" if total else ""
            words.append(f"{format_count(done)}{of_total} {unit}")
        words += [labelled(name, self._numbers[name]) for name in list(self._numbers)[:FIGURES]]
        if remaining:
            words.append(f"{format_duration(remaining)} left")
        return ", ".join(words)


# An engine that is aborted knows no later state than Running; the flow logs the one it has set.
UNTRUE = ("Finished in state NotReady", "Finished in state Running")


class SingleLineErrorFilter(logging.Filter):
    """Filter that redacts secrets in Prefect's logs and drops Cloze errors, which nodes log."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, (ClozeError, FailedRun)) or record.getMessage().startswith(UNTRUE):
            return False  # the flow logs the message
        record.msg, record.args = redact(record.getMessage()), ()
        if error is not None:
            record.exc_text = redact("".join(traceback.format_exception(error)))
            record.exc_info = None
        return True


def install_log_filter() -> None:
    """Add the filter to Prefect's run loggers. Idempotent."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        if not any(isinstance(existing, SingleLineErrorFilter) for existing in logger.filters):
            logger.addFilter(SingleLineErrorFilter())
