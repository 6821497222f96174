"""Prefect flows over a config's graph: a node is a task run, submitted when its inputs exist.

A flow's process also watches its parent. If the worker is killed, the process stops as on SIGTERM,
so trainings save checkpoints.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import queue
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from prefect import flow, tags
from prefect.client.schemas.objects import State
from prefect.exceptions import Abort, Pause
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.settings import PREFECT_UI_URL
from prefect.states import Cancelled, Completed, Crashed, Failed
from prefect.task_runners import ThreadPoolTaskRunner
from rich.console import Console

from cloze.core import accounts, places
from cloze.core.errors import ClozeError, StoppedError
from cloze.core.processes import request_death_signal
from cloze.core.secrets import redact
from cloze.flows.graph import schedule
from cloze.flows.prefect import flow_state
from cloze.flows.prefect import parameters as form
from cloze.flows.prefect.automations import TAG, tag
from cloze.flows.prefect.node import (
    NODE_RUN_CONTEXT,
    NodeRunContext,
    install_log_filter,
    node_of,
    plan_page,
)
from cloze.flows.prefect.parameters import parameters_of
from cloze.flows.prefect.publishing import ArtifactPublisher
from cloze.flows.run import source, status_file
from cloze.flows.run.session import RunSession

_SIGNAL = signal.SIGUSR2
_parent = 0  # the watched process; 0: none


def watch_parent() -> None:
    """Ask the kernel to signal this process when its parent dies. Works in the main thread only."""
    global _parent
    if threading.current_thread() is not threading.main_thread():
        return
    _parent = os.getppid()
    signal.signal(_SIGNAL, _end_if_orphan)
    request_death_signal(_SIGNAL)


def is_orphan() -> bool:
    """Return whether the watched parent has died."""
    return _parent not in (0, os.getppid())


def _end_if_orphan(*_: object) -> None:
    if not is_orphan():  # the signal also comes when one of the parent's threads ends
        return
    # output to a broken pipe would end this process before its trainings
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.kill(os.getpid(), signal.SIGTERM)


# the session of the command line, which shows its results
ACTIVE: ContextVar[RunSession | None] = ContextVar("session", default=None)
FORM_NAME = re.compile(  # drawn by the two versions of Prefect's form: Gorgeous-Egret, chi6-binet
    "(Awesome|Rustic|Gorgeous|Fantastic|Sleek|Intelligent|Unbranded|Refined|Licensed|Practical|"
    "Ergonomic|Handcrafted|Tasty|Handmade|Incredible)-[A-Z][a-z]{1,5}|(alpha|beta|gamma|delta|"
    "epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|omicron|pi|rho|sigma|tau|upsilon|phi|chi|"
    r"psi|omega)\d+-[a-z-]+"
)
SHOWN = 40  # nodes; in a larger graph, cached nodes get no task run


@functools.cache
def prefect_words() -> frozenset[str]:
    """Return the words of the names that Prefect's server draws."""
    from coolname.data import config

    entries: Any = config  # untyped
    lists = (entry.get("words", ()) for entry in entries.values())
    return frozenset(itertools.chain.from_iterable(lists))


def run_name() -> str:
    """Return the name that was typed; instead of one that Prefect draws, config and start time."""
    name = str(flow_run.name or "")
    if (
        name
        and not set(name.partition("-")[::2]) <= prefect_words()
        and not FORM_NAME.fullmatch(name)
    ):
        return name
    config = str(flow_run.parameters.get("config", "run")).rpartition("/")[2].removesuffix(".yaml")
    start_time = flow_run.scheduled_start_time or datetime.now()
    return f"{config} {start_time.astimezone():%m-%d %H:%M:%S}"  # the clock of this machine


OPTIONS: dict[str, Any] = {  # shared by all flows
    "flow_run_name": run_name,
    "task_runner": ThreadPoolTaskRunner(),  # a node that waits for slots occupies a thread
    "persist_result": False,
    "cache_result_in_memory": False,
    "validate_parameters": True,
}


@flow(
    name="full-run",
    description=(
        "Raw text in, an evaluated encoder and a report out. Cached nodes do not run again."
    ),
    **OPTIONS,
)
def full_run(
    config: form.Config = "demo",
    vocab_size: form.Count = None,
    length: form.Length = None,
    mask_copies: form.Count = None,
    steps: form.Count = None,
    global_batch: form.Count = None,
    learning_rate: form.LearningRate = None,
    seed: form.Seed = None,
    epochs: form.Count = None,
    task_learning_rate: form.LearningRate = None,
    task_seed: form.Seed = None,
    workers: form.Count = None,
    processes: form.Count = None,
    launcher: form.Launcher = None,
    nodes: form.Count = None,
    hostfile: form.OptionalText = None,
    start_from: form.StartFrom = form.NO_NODES,
    only: form.Only = form.NO_NODES,
    until: form.Until = form.NO_NODES,
    force: form.Force = form.NO_NODES,
    overrides: form.Overrides = form.NO_OVERRIDES,
    retries: form.Retries = 2,
) -> State[Any]:
    """Run the nodes of a config's graph that are not cached, up to the stages in `until`.

    Args:
        vocab_size: Entries of the vocabulary. Empty: as in the config.
        length: Tokens per row of the dataset. Empty: as in the config.
        mask_copies: Mask copies of each row. Empty: as in the config.
        steps: Optimizer steps of pretraining. Empty: as in the config.
        global_batch: Sequences per pretraining step, over all processes. Empty: as in the config.
        learning_rate: Highest learning rate of pretraining. Empty: as in the config.
        seed: Seed of pretraining: weights, order, dropout. Empty: as in the config.
        epochs: Epochs of fine-tuning. Empty: as in the config.
        task_learning_rate: Highest learning rate of fine-tuning. Empty: as in the config.
        task_seed: Seed of fine-tuning: head weights, order, dropout. Empty: as in the config.
        workers: Beam workers of a data stage; changes no result. Empty: as in the config.
        processes: Training processes, one per GPU; changes no result. Empty: as in the config.
        nodes: Hosts that train together, with a launcher; other stages have one. Empty: as in the
            config.
        hostfile: For ssh: a hostfile on the worker's machine. Empty: as in the config.
    """
    return flow_state.settled(_run(locals()))


# The same flow under other names; `prefect.yaml` sets `until` for each.
data = full_run.with_options(name="data", description="Raw text to datasets.")
pretraining = full_run.with_options(name="pretraining", description="All phases of pretraining.")
finetuning = full_run.with_options(name="finetuning", description="All fine-tunings.")
evaluation = full_run.with_options(name="evaluation", description="All evaluations.")
ablation = full_run.with_options(
    name="ablation", description="A table of a paper: the rows of a matrix, and their report."
)


def run_flow(session: RunSession) -> None:
    """Run the nodes of the command line's session as the flow `full-run`.

    Raises:
        Exception: a node's error, or an error of Prefect.
        StoppedError: the flow run was cancelled, and a training saved a checkpoint.
        KeyboardInterrupt: the flow run was cancelled, and nothing was saved.
    """
    parameters = session.parameters.model_dump(mode="json")
    parameters |= {"overrides": redact(parameters["overrides"]), "retries": 0}  # from the config
    token = ACTIVE.set(session)
    try:
        with tags(TAG, tag(accounts.project(session.config.project))):
            state = full_run(**parameters, return_state=True)
    except BaseException as error:
        if isinstance(error, Exception):
            raise
        raise _checkpoint_error(session) or KeyboardInterrupt() from None
    finally:
        ACTIVE.reset(token)
    if session.error is not None:
        raise session.error
    if not state.is_completed():
        raise RuntimeError(state.message or state.name)


def _checkpoint_error(session: RunSession) -> StoppedError | None:
    """Return the error of a training that saved a checkpoint when it was stopped."""
    errors = session.failures.values()
    return next((error for error in errors if isinstance(error, StoppedError)), None)


def _run(values: Mapping[str, Any]) -> State[Any]:
    """Run the nodes of a run; the returned state becomes the flow run's.

    Args:
        values: arguments of the flow.
    """
    install_log_filter()
    session = ACTIVE.get()
    try:
        if session is None:  # a worker started it; Prefect's lines are in its log
            parameters, title = parameters_of(values), str(flow_run.name)
            if sentence := form.left_out(values, parameters):
                get_run_logger().warning("%s", sentence)
            quiet = Console(quiet=True)
            session = RunSession(parameters, quiet, run_id=flow_run.id, title=title)
            watch_parent()
        with session:
            return run_as_tasks(session, int(values["retries"]))
    except StoppedError as error:
        return Cancelled(message=str(error))
    except Exception as error:
        if session is not None:
            session.error = error
        if not isinstance(error, ClozeError) and (session is None or not session.failures):
            raise  # an internal error: the log needs its traceback
        get_run_logger().error("%s", schedule.describe_error(error))
        # without the error object, which Prefect would pickle
        return Failed(message=redact(schedule.describe_error(error)))
    finally:
        flow_state.ignore_suspend()


def run_as_tasks(session: RunSession, retries: int) -> State[Any]:
    """Run the nodes of an entered session as task runs. Raises the errors of failed nodes."""
    assert session.record is not None
    session.record.update(prefect=str(flow_run.id))
    used = session.record.content["source"]
    is_known = source.remember(str(flow_run.id), used, places.runs_directory())
    if not is_known and (flow_run.run_count or 0) > 1:
        get_run_logger().warning(
            "The source of this flow run's last start is not recorded here; this retry has today's"
        )
    in_terminal = ACTIVE.get() is not None
    if in_terminal and PREFECT_UI_URL.value():
        session.screen.print(
            f"[dim]Prefect: {PREFECT_UI_URL.value()}/runs/flow-run/{flow_run.id}[/]", soft_wrap=True
        )
    with ArtifactPublisher(str(flow_run.id)) as publisher:
        name = session.config.name
        publisher.markdown(f"{name}-plan", plan_page(session), f"Plan of run {name}")
        token = NODE_RUN_CONTEXT.set(NodeRunContext(session, publisher, retries))
        futures: dict[str, PrefectFuture[Any]] = {}
        try:
            with _graceful_stop(session, futures, in_terminal):
                _submit_in_order(session, retries, futures)
        finally:
            NODE_RUN_CONTEXT.reset(token)
    if session.failures:
        raise schedule.combine_errors(session.failures)
    session.started_nodes.forget()
    built = sum(not result.cached for result in session.results.values())
    cached = len(session.results) - built
    message = f"{built} nodes built{f', {cached} cached' if cached else ''}"
    return Completed(message=message if built else "nothing to do")


def _submit_in_order(
    session: RunSession, retries: int, futures: dict[str, PrefectFuture[Any]]
) -> None:
    """Submit each node as soon as its inputs exist, and wait until all have ended.

    Prefect draws a task run that is submitted earlier as a bar from the start of the run.

    Args:
        futures: filled with the task runs by node.
    """
    frontier = schedule.Frontier(session.steps)
    running: set[str] = set()
    finished: queue.SimpleQueue[str | State[Any]] = queue.SimpleQueue()
    flow_state.watch(lambda: session.stopping, finished.put)
    while running or frontier.waiting:
        for step in frontier.ready():
            del frontier.waiting[step.name]
            if step.cached and len(session.steps) > SHOWN:
                session.run_node(step)
                frontier.done(step.name)
                continue
            running.add(step.name)
            futures[step.name] = node_of(step, retries).submit(
                step.name,
                step.reason or "nothing to do",
                return_state=False,
                wait_for=[futures[name] for name in step.depends_on if name in futures],
            )
            futures[step.name].add_done_callback(lambda _, name=step.name: finished.put(name))  # type: ignore[misc]
        if not running:
            continue
        name = finished.get()
        if isinstance(name, State):
            raise flow_state.EndRequested(name)
        running.discard(name)
        if name not in session.failures:
            frontier.done(name)
            continue
        for step in frontier.failed(name):
            session.skip(step, name)
            get_run_logger().warning("%s is skipped: %s failed", step.name, name)


@contextlib.contextmanager
def _graceful_stop(
    session: RunSession, futures: Mapping[str, PrefectFuture[Any]], in_terminal: bool
) -> Iterator[None]:
    """Let trainings save checkpoints when this thread is interrupted; a cancel ends as Cancelled.

    Args:
        in_terminal: the run was started in a terminal, where an interruption is a cancel.
    """
    try:
        yield
    except BaseException as error:
        cancel_requested = session.record is not None and session.record.cancel_requested
        session.stop()
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ignore further requests
        for future in futures.values():
            done = threading.Event()  # `future.wait` raises Pause at once if the run is suspended
            future.add_done_callback(lambda _, done=done: done.set())  # type: ignore[misc]
            done.wait()
        if isinstance(error, Exception):
            raise
        message = str(_checkpoint_error(session) or "")
        suspension = flow_state.suspension(error)
        if suspension is not None:
            message = (
                f"suspended in Prefect, where Resume continues it: {message or 'nothing saved'}"
            )
            session.ending = (status_file.CANCELLED, message)
            get_run_logger().warning("%s", message)
            raise Pause(state=flow_state.keep_suspended(message, suspension)) from None
        if is_orphan():
            final_state: State[Any] = Crashed(
                message=f"its worker is gone{message and f': {message}'}"
            )
            session.ending = (status_file.CRASHED, str(final_state.message))
        elif in_terminal or cancel_requested or flow_state.is_ended(ended := flow_state.current()):
            is_deleted = not (in_terminal or cancel_requested) and ended.name == "Deleted"
            message = f"{'deleted in Prefect: ' * is_deleted}{message or 'stopped; run again'}"
            final_state = Cancelled(message=message)
            session.ending = (status_file.CANCELLED, str(final_state.message))
        else:
            session.ending = (status_file.CRASHED, message or "a signal ended its process")
            raise  # Prefect handles the signals of its workers and supervisors
        flow_state.write(final_state)
        get_run_logger().info("Finished in state %s", final_state)
        raise Abort(final_state.message) from None
