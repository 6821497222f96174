"""A run as a flow: every node a task run, submitted at once, each waiting for what it needs; slots say how many of them compute."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, TypedDict

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import Abort
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.runtime import deployment, flow_run
from prefect.settings import PREFECT_UI_URL
from prefect.states import Cancelled, Completed, Crashed, Failed
from prefect.task_runners import ThreadPoolTaskRunner
from rich.console import Console

from flows.graph import schedule
from flows.prefect import node as nodes
from flows.prefect import orphans
from flows.prefect.node import RUNNING, Running, node_of
from flows.prefect.pages import plan_page
from flows.prefect.parameters import parameters_of
from flows.prefect.telling import Teller
from flows.session import Session
from pipeline.core.errors import ClozeError, Stopped
from pipeline.core.secrets import masked

ACTIVE: ContextVar[Session | None] = ContextVar("session", default=None)  # the command line's own, whose results it shows
SHOWN = 40  # nodes; of larger graphs those that are made already are no task runs


class Options(TypedDict):
    """What all flows have in common."""

    flow_run_name: Any
    task_runner: Any
    persist_result: bool
    cache_result_in_memory: bool
    validate_parameters: bool


def run_name() -> str:
    """The config and the time, so that runs of one config can be told apart."""
    config = str(flow_run.parameters.get("config", "run")).rpartition("/")[2].removesuffix(".yaml")
    moment = flow_run.scheduled_start_time or datetime.now()
    return f"{config} {moment:%m-%d %H:%M:%S}"


OPTIONS = Options(
    flow_run_name=run_name,
    task_runner=ThreadPoolTaskRunner(),  # nodes that wait cost a thread each
    persist_result=False,
    cache_result_in_memory=False,
    validate_parameters=True,
)


def run_graph(values: Mapping[str, Any], until: tuple[str, ...] = ()) -> State[Any]:
    """Make the nodes of a run, and say in the flow run's state what came of it.

    Args:
        values: the flow's arguments.
        until: stages that it goes up to; without them the whole graph.
    """
    nodes.quieten()
    session = ACTIVE.get()
    try:
        if session is None:  # by a worker, whose log has Prefect's lines
            session = Session(parameters_of(values, until), Console(quiet=True), run_id=flow_run.id)
            orphans.watch_parent()
        with session:
            return made_in_tasks(session, int(values.get("retries", 0)))
    except Stopped as error:
        return Cancelled(message=str(error))
    except Exception as error:
        if not isinstance(error, ClozeError) and (session is None or not session.failures):
            raise  # a fault of ours, whose place is to be told
        get_run_logger().error("%s", schedule.sentence(error))
        return Failed(message=masked(schedule.sentence(error)))  # without the error itself, which Prefect would pickle


def made_in_tasks(session: Session, retries: int) -> State[Any]:
    """Make the nodes of a session that is entered, a task run each. Raises what they have failed with."""
    assert session.record is not None
    session.record.update(prefect=str(flow_run.id))
    started = ACTIVE.get() is not None
    if started and PREFECT_UI_URL.value():
        session.screen.print(f"[dim]Prefect: {PREFECT_UI_URL.value()}/runs/flow-run/{flow_run.id}[/]", soft_wrap=True)
    with Teller(str(flow_run.id), by_worker=not started and deployment.id is not None) as teller:
        teller.markdown(f"{session.config.name}-plan", plan_page(session), f"The plan of run {session.config.name}")
        token = RUNNING.set(Running(session, teller, retries))
        futures: dict[str, PrefectFuture[Any]] = {}
        try:
            with _ended_in_peace(session, futures, started):
                for step in session.steps:
                    if step.cached and len(session.steps) > SHOWN:
                        session.attempt(step)
                        continue
                    needed = [futures[name] for name in step.after if name in futures]
                    futures[step.name] = node_of(step, retries).submit(
                        step.name, step.why or "nothing to do", return_state=False, wait_for=needed
                    )
                _wait(session, futures)
        finally:
            RUNNING.reset(token)
    if session.failures:
        raise schedule.told(session.failures)
    session.begun.forget()
    made = sum(not result.cached for result in session.results.values())
    there = len(session.results) - made
    return Completed(message=f"{made} nodes made" + (f", {there} were there" if there else "") if made else "nothing to do")


def _wait(session: Session, futures: Mapping[str, PrefectFuture[Any]]) -> None:
    """Until all have ended; those that cannot be made are told with the node that failed before them."""
    lost: dict[str, str] = {}
    for step in session.steps:
        future = futures.get(step.name)
        if future is None:
            continue
        future.wait()
        if step.name in session.failures:
            lost[step.name] = step.name
            continue
        cause = next((lost[name] for name in step.after if name in lost), None)
        if cause is not None:
            lost[step.name] = cause
            session.skip(step, cause)
            get_run_logger().warning("%s is not made: %s failed", step.name, cause)


@contextlib.contextmanager
def _ended_in_peace(session: Session, futures: Mapping[str, PrefectFuture[Any]], started: bool) -> Iterator[None]:
    """Whatever interrupts this thread: trainings save their checkpoints first. One that was cancelled ends Cancelled, not Crashed.

    Args:
        started: from a terminal; an interruption of it is a cancel.
    """
    try:
        yield
    except BaseException as error:
        cancel_asked = session.record is not None and session.record.cancel_asked
        session.stop()
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # who asks twice is not quicker
        for future in futures.values():
            future.wait()
        if isinstance(error, Exception):
            raise
        saved = next((str(found) for found in session.failures.values() if isinstance(found, Stopped)), "")
        if orphans.is_orphan():
            end: State[Any] = Crashed(message=f"its worker is gone{saved and f': {saved}'}")
        elif started or cancel_asked or _is_cancelled():
            end = Cancelled(message=saved or "cancelled")
        else:
            raise  # Prefect has its own ways with what its workers and supervisors do
        with contextlib.suppress(Exception), get_client(sync_client=True) as client:
            client.set_flow_run_state(flow_run.id, end, force=True)
        raise Abort(end.message) from None


def _is_cancelled() -> bool:
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:
        state = client.read_flow_run(flow_run.id).state
        return state is not None and (state.is_cancelling() or state.is_cancelled())
    return False
