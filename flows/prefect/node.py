"""A node of the graph as a task run: its name, its log, its progress bar, its figures and links, its retries."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.exceptions import FailedRun
from prefect.logging import get_run_logger
from prefect.runtime import task_run
from prefect.states import Cancelled, Completed

from flows.graph import plan
from flows.graph.stages import headline
from flows.launchers import retries
from flows.prefect.pages import node_page
from flows.prefect.telling import Progress, Teller
from flows.session import Session
from pipeline.core.errors import ClozeError, Stopped
from pipeline.core.humanize import duration, short, si
from pipeline.core.reporting import Reporter
from pipeline.core.secrets import masked

LOG_SECONDS = 30.0
BAR_SECONDS = 2.0
FIGURES = 4  # in a line of the log


@dataclass(frozen=True, slots=True)
class Running:
    """What the nodes of a flow run share. Attributes: retries: of nodes whose config says nothing about it."""

    session: Session
    teller: Teller
    retries: int


RUNNING: ContextVar[Running] = ContextVar("running")


def _may_pass(task: Task[Any, Any], run: Any, state: State[Any]) -> bool:
    del run
    session = RUNNING.get().session
    error = session.failures.get(task.name, state.data)  # Prefect's has lost what it knew, see `node`
    return isinstance(error, BaseException) and session.may_pass(session.step(task.name), error)


@task(cache_policy=NO_CACHE, persist_result=False, retry_condition_fn=_may_pass)
def node(name: str, why: str) -> State[Any]:
    """Make the node of that name. Whether anything is to do says the artifact's fingerprint, never Prefect's cache, which cannot know
    that a directory was removed.
    """
    running, log = RUNNING.get(), get_run_logger()
    session, run_id = running.session, str(task_run.id)
    step = session.step(name)
    log.info("%s", f"{why}; artifact {step.artifact}")
    with Told(session, step, running.teller.progress(run_id), log) as told:
        try:
            result = session.attempt(step, attempt=task_run.run_count or 1, also=told)
        except (Stopped, KeyboardInterrupt) as error:
            return Cancelled(message=str(error) or _unsaved(step, told))
        except ClozeError as error:
            log.error("%s", error)
            raise type(error)(masked(str(error))) from None  # Prefect makes the state's message of it
        except Exception as error:
            if masked(str(error)) != str(error):
                raise RuntimeError(masked(f"{type(error).__name__}: {error}")) from None
            raise
    line = headline(result.manifest)
    page = node_page(session, step, result, told.build_id)
    running.teller.markdown(f"{session.config.name}-{name}", page, f"{name}: {line}", run_id)
    if result.cached:
        return Completed(name="Cached", message=f"nothing to do{line and ': '}{line}")
    log.info("%s", f"made in {duration(result.seconds)}: {line}")
    return Completed(message=line or "made")


def _unsaved(step: plan.Step, told: Told) -> str:
    if told.build_id is None:
        return "stopped before it began"
    seconds = told.seconds or step.node.execution.least_grace
    return f"stopped; it saved nothing in the {seconds:g} s that it had, what it saved before is there"


def node_of(step: plan.Step, usual_retries: int) -> Task[[str, str], State[Any]]:
    """The task that makes a step, under the node's name and with its retries."""
    execution = step.node.execution
    times = execution.retries or usual_retries
    return node.with_options(
        name=step.name,
        task_run_name=step.name,
        retries=times,
        retry_delay_seconds=[retries.delay(attempt, execution.retry_seconds) for attempt in range(1, times + 1)],
    )


class Told(Reporter):
    """What a node tells of itself, as lines of its log and as its progress bar."""

    def __init__(
        self, session: Session, step: plan.Step, bar: Progress, log: logging.Logger | logging.LoggerAdapter[Any]
    ) -> None:
        self.session, self.step, self.bar, self.log = session, step, bar, log
        self.build_id: str | None = None
        self.seconds: float | None = None  # that it may take to end
        self._logged = self._shown = 0.0
        self._part: Any = None
        self._warned: set[str] = set()
        self._last: tuple[float, str] | None = None
        self._told = ""

    def __enter__(self) -> Told:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._last is not None:
            percent, line = self._last
            self.bar.set(100.0 if kind is None else percent, line)
            if line != self._told:
                self.log.info("%s", line)

    def begin(self, build_id: str) -> None:
        self.build_id = build_id
        self.bar.set(0.0, "begun")
        self._logged = time.monotonic()

    def progress(self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]) -> None:
        warning = figures.get("warning")
        if warning and str(warning) not in self._warned:
            self._warned.add(str(warning))
            self.log.warning("%s", masked(str(warning)))
        now, part = time.monotonic(), figures.get("step")
        line = self._line(done, total, unit, figures)
        percent = 100.0 * done / total if total else 0.0
        self._last = (min(percent, 100.0), line)
        if now > self._shown + BAR_SECONDS:
            self._shown = now
            self.bar.set(*self._last)
        if now > self._logged + LOG_SECONDS or (isinstance(part, str) and part != self._part):
            self._logged, self._part, self._told = now, part, line
            self.log.info("%s", line)

    def grace(self, seconds: float) -> None:
        self.seconds = seconds

    def _line(self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]) -> str:
        words = [str(figures[name]) for name in ("step", "note") if isinstance(figures.get(name), str)]
        numbers = [f"{name} {short(value)}" for name, value in figures.items() if isinstance(value, (int, float))]
        left = self.session.seconds_left(self.step.name)
        count = f"{si(done)}/{si(total)} {unit}" if total else f"{si(done)} {unit}"
        return ", ".join([*words, count, *numbers[:FIGURES], *([f"{duration(left)} left"] if left else [])])


class OneSentence(logging.Filter):
    """In Prefect's own logs: an error of ours is told by its node in one sentence, so its traceback is left out; secrets are masked."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, (ClozeError, FailedRun)) or record.getMessage().startswith("Finished in state NotReady"):
            return False  # the flow says it in a sentence
        record.msg, record.args = masked(record.getMessage()), ()
        if error is not None:
            record.exc_text, record.exc_info = masked("".join(traceback.format_exception(error))), None
        return True


def quieten() -> None:
    """Put the filter where runs log; twice does no more than once."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        if not any(isinstance(found, OneSentence) for found in logger.filters):
            logger.addFilter(OneSentence())
