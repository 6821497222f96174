"""A node as a Prefect task run: log, final state, retries.

Its log has the progress, and the link to its MLflow run, which has the metrics.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.exceptions import FailedRun
from prefect.logging import get_run_logger
from prefect.runtime import task_run
from prefect.states import Cancelled, Completed

from cloze.core import places
from cloze.core.errors import ClozeError, StoppedError
from cloze.core.humanize import format_count, format_duration, labelled
from cloze.core.secrets import redact
from cloze.core.stages.stage import Reporter
from cloze.flows.graph import nodes, plan
from cloze.flows.graph.stages import headline
from cloze.flows.machine import retry_policy
from cloze.flows.run import server_addresses
from cloze.flows.run.session import RunSession
from cloze.flows.tracking import spool_state
from cloze.flows.tracking.spool import DIRECTORY

LOG_SECONDS = 30.0
FIGURES = 4  # metrics per log line


RUNNING: ContextVar[RunSession] = ContextVar("running")  # the session whose nodes are task runs


def _should_retry(task: Task[Any, Any], run: Any, state: State[Any]) -> bool:
    del run
    session = RUNNING.get()
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
    session, log = RUNNING.get(), get_run_logger()
    step = session.step(name)
    reason = "Nothing to do" if step.cached else f"Reason to run: {why}"
    log.info("%s. Artifact: %s", reason, step.artifact)
    with TaskRunReporter(session, step, log) as reporter:
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
    if result.cached:
        return Completed(name="Cached", message=f"nothing to do{summary and ': '}{summary}")
    log.info("built in %s: %s", format_duration(result.seconds), summary)
    if link := mlflow_page(reporter.build_id):
        log.info("MLflow: %s", link)
    return Completed(message=summary or "built")


def log_warnings(text: str, log: logging.Logger | logging.LoggerAdapter[Any]) -> str:
    """Log the warnings in a headline, by which Prefect's pages filter; return the rest."""
    summary, *warnings = text.split("; warning: ")
    for warning in warnings:
        log.warning("%s", warning)
    return summary


def mlflow_page(build_id: str | None) -> str | None:
    """Return the address of a build's MLflow run; None: no server is known, or not yet the run."""
    runs = places.runs_directory()
    server = server_addresses.mlflow(runs)
    return spool_state.page(runs / DIRECTORY, build_id, server) if server and build_id else None


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
    """Reporter of a node's progress to the log of its task run."""

    def __init__(
        self,
        session: RunSession,
        step: plan.PlannedNode,
        log: logging.Logger | logging.LoggerAdapter[Any],
    ) -> None:
        self.session, self.step, self.log = session, step, log
        self.build_id: str | None = None
        self.seconds: float | None = None  # grace period that it asked for
        self._logged = 0.0  # when, on the monotonic clock
        self._part: Any = None
        self._warned: set[str] = set()
        self._line = self._logged_line = ""  # the newest, and the last one that was logged
        self._numbers: dict[str, float] = {}  # newest value of each, in the order of first reports

    def __enter__(self) -> TaskRunReporter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._line != self._logged_line:
            self.log.info("%s", self._line)

    def build_started(self, build_id: str) -> None:
        self.build_id = build_id
        self._logged = time.monotonic()

    def progress(
        self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]
    ) -> None:
        warning = figures.get("warning")
        if warning and str(warning) not in self._warned:
            self._warned.add(str(warning))
            self.log.warning("%s", redact(str(warning)))
        now, step = time.monotonic(), figures.get("step")
        self._line = self._describe(done, total, unit, figures)
        if now > self._logged + LOG_SECONDS or (isinstance(step, str) and step != self._part):
            self._logged, self._part, self._logged_line = now, step, self._line
            self.log.info("%s", self._line)

    def shutdown_time(self, seconds: float) -> None:
        self.seconds = seconds

    def _describe(
        self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]
    ) -> str:
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
