"""The coordinator: runs a stage in ranks, restarts lost ranks, and finds detached launches.

A detached launch (Slurm job, TrainJob) survives the process that started it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from cloze.core import storage
from cloze.core.artifacts.fence import start_attempt, start_launch
from cloze.core.artifacts.lock import is_locked
from cloze.core.config import StageConfig
from cloze.core.errors import StoppedError, TimeLimitError, UsageError, shell_command
from cloze.core.identity import recorded_source
from cloze.core.stages.execution import LAUNCHER_FIELDS, Execution
from cloze.core.stages.stage import BuildContext, Stage, StageResult
from cloze.core.stages.worker import LOGS, Job, local_directory
from cloze.flows.launch import cancel_requests, host_setup, protocol, site
from cloze.flows.launch.cancel_requests import CancelPoll
from cloze.flows.launch.hang_detection import ASLEEP_SECONDS
from cloze.flows.launch.launch_state import LaunchState, launch_result
from cloze.flows.launch.protocol import (
    Detached,
    HostsUnreachableError,
    Launcher,
    LaunchRequest,
    PreemptedError,
    RankGroup,
    RanksLostError,
)
from cloze.flows.machine import slots
from cloze.flows.machine.retry_policy import RetryPolicy, backoff_seconds


def living(path: str) -> tuple[str, Detached] | None:
    """Return the detached launch that trains, or will train, at `path`, after its launcher's name.

    Raises ClozeError: Slurm or the cluster does not respond.
    """
    left = storage.list_names(storage.join(path, LOGS))  # launchers leave a directory each
    for name in (name for name in protocol.LAUNCHERS if name in left):
        if (detached := protocol.LAUNCHERS[name].living(path)) is not None:
            return name, detached
    return None


def unattended(path: str) -> Detached | None:
    """Return the detached launch at `path` if no process follows it, else None."""
    followed = (
        is_locked(path) if storage.is_local(path) else cancel_requests.holder(path) is not None
    )
    found = None if followed else living(path)
    return found and found[1]


def _make_room(build: BuildContext, launcher: Launcher) -> None:
    """End a launch that nobody follows, so that its ranks save, unless `launcher` attaches to it.

    Only then may the new launch take the fence, which kills superseded ranks.

    Raises:
        UsageError: a launch of another launcher trains there, which that launcher handles.
        ClozeError: Slurm or the cluster does not respond.
    """
    if (found := living(build.path)) is None:
        return
    name, detached = found
    if name != build.execution.launcher:
        raise UsageError(
            f"{detached.name} still trains in {build.path}; follow it with --launcher "
            f"{name}, or end it with {shell_command('cancel', build.path)}"
        )
    if not launcher.attaches:
        detached.cancel(build.report.queued)


# Restarts: start lost ranks again on the remaining hosts, from the newest checkpoint, with backoff.

USUAL = 3  # restarts, if fewer hosts or processes are allowed, or after this process stood still
AWAKE_SECONDS = 60.0  # after that; connections whose time limit passed meanwhile break at once
FIRST_SECONDS = 2.0

log = logging.getLogger(__name__)


def run_with_restarts(launcher: Launcher, work: LaunchRequest) -> StageResult:
    """Run the ranks to their end, and start lost ones again.

    A preemption is no failure: it does not count towards the maximum number of restarts. Nor does a
    loss of ranks just after this process, and so perhaps its machine, stood still.

    Raises ClozeError: the error of the last attempt.
    """
    restarts, preemptions, pauses, policy = 0, 0, 0, RetryPolicy(work.execution)
    deadline = time.monotonic() + 60.0 * (work.execution.timeout_minutes or math.inf)
    while True:
        attempt = LaunchCoordinator(launcher, work, deadline)
        try:
            return attempt.run()
        except PreemptedError as error:
            preemptions, seconds = preemptions + 1, FIRST_SECONDS
            message = f"{error}; started again when there is room, preemption {preemptions}"
        except RanksLostError as error:
            # A host that never answered is a mistake in the options, and no loss to recover from.
            if restarts == 0 and isinstance(error, HostsUnreachableError):
                raise UsageError(str(error)) from None
            stood_still = pauses < USUAL and time.monotonic() < attempt.woke + AWAKE_SECONDS
            pauses, restarts = pauses + stood_still, restarts + (not stood_still)
            error.step = error.step or 0  # the ranks had not started
            how, gpus = work.execution, _gpus(work.execution)
            usual = 0 if how.min_nodes is None and how.min_processes is None else USUAL
            most = usual if how.restarts is None else how.restarts
            if not stood_still and (restarts > most or not policy.should_retry(error, gpus)):
                raise
            seconds = backoff_seconds(max(restarts, 1), FIRST_SECONDS)
            count = "all stood still before" if stood_still else f"restart {restarts} of {most}"
            previous_processes = work.processes
            work = _with(work, policy.execution)
            fewer = f" with {work.processes} processes" * (work.processes < previous_processes)
            message = f"{error}; started again{fewer} in {seconds:.0f} s, {count}"
        log.warning("%s", message)
        figures = {"warning": message, "restarts": restarts, "preemptions": preemptions}
        work.build.report.progress(0, None, "steps", figures)
        _wait(work, seconds)


def _with(work: LaunchRequest, execution: Execution) -> LaunchRequest:
    """Return the request with the processes of the next attempt."""
    if execution == work.execution:
        return work
    return replace(
        work,
        processes=execution.processes,
        job=replace(work.job, execution=execution.model_dump(mode="json")),
        build=replace(work.build, execution=execution),
    )


def _gpus(execution: Execution) -> tuple[str, ...] | None:
    """Return the GPUs that respond; None unless all ranks run on this host's GPUs."""
    if execution.launcher != "local" or execution.nodes > 1 or execution.device == "cpu":
        return None
    return slots.visible_gpus() or None


def _wait(work: LaunchRequest, seconds: float) -> None:
    """Wait before a restart. Raises KeyboardInterrupt if the run is asked to stop."""
    deadline, cancel_poll = time.monotonic() + seconds, CancelPoll(work.build.path)
    while time.monotonic() < deadline:
        if work.build.report.stop_requested() or cancel_poll():
            raise KeyboardInterrupt
        time.sleep(0.2)


# The coordinator: runs a stage in ranks and returns their progress, result and errors.

PEER_SECONDS = 5.0  # for other ranks to notice a failure
POLL_SECONDS = 0.5


def run_in_worker_processes(
    stage: Stage, reference: str
) -> Callable[[StageConfig, BuildContext], StageResult]:
    """Return a `Stage.run` that runs the stage in worker processes, where its launcher starts them.

    A parallel stage has `execution.processes` ranks per host, others one process on one host. A
    stage without a worker runs in this process, unless a launcher other than local is chosen.

    `reference`: `module:STAGE`, which the worker imports.
    """

    def run(config: StageConfig, build: BuildContext) -> StageResult:
        is_child = build.execution.launcher == "local" and not stage.parallel
        if is_child and stage.worker is None:
            return stage.run(config, build)
        execution = site.read().filled(placed(stage, build.execution))
        build = replace(build, execution=execution)
        job = Job(
            stage=stage.name,
            reference=reference,
            config=config.model_dump(mode="json"),
            path=build.path,
            inputs=dict(build.inputs),
            execution=execution.model_dump(mode="json"),
            fingerprint=build.fingerprint,
            build_id=build.build_id,
            # A launch has its own token: its ranks may outlive this attempt, and another attempt
            # may attach to them.
            token=build.token if is_child else "",
            source=str(recorded_source() or ""),
        )
        foreign = host_setup.foreign_rank()
        if foreign is not None:
            if not stage.parallel:
                raise UsageError(f"{stage.name} runs in one process; start it without torchrun")
            host_setup.check_foreign(execution)
        work = LaunchRequest(
            job=job,
            worker=f"{stage.worker_package}.worker",
            processes=execution.processes,
            build=build,
            single=not stage.parallel,
        )
        launcher = protocol.LAUNCHERS.find(execution.launcher)
        for name, reader in LAUNCHER_FIELDS.items():
            if (value := getattr(build.execution, name)) and reader != execution.launcher:
                text = " ".join(value) if isinstance(value, tuple) else value
                raise UsageError(
                    f"{name} ({text}) is for --launcher {reader}, not {execution.launcher}; choose "
                    f"that launcher, or leave the option out"
                )
        launcher.check(execution)
        if foreign is None or foreign[0] == 0:  # torchrun's other ranks do not own the directory
            _make_room(build, launcher)
            if not (launcher.attaches or is_child):  # else one is started only where none runs
                work = replace(work, launch=start_launch(build.path))
            # They were meant for the launch before this one.
            cancel_requests.clear_requests(build.path)
        return run_with_restarts(launcher, work)

    return run


def placed(stage: Stage, execution: Execution) -> Execution:
    """Return the settings of the stage's processes: one on one host, unless it is parallel.

    Hosts, processes and devices of a run's trainings are no business of its other stages.
    """
    if stage.parallel:
        return execution
    changes: dict[str, Any] = {"processes": 1, "nodes": 1, "min_processes": None}
    if execution.launcher != "local":
        # It saves nothing at a stop, so a scheduler need not wait for it.
        changes["grace_seconds"] = execution.min_grace_seconds
        changes |= {} if stage.on_gpu else {"device": "cpu"}
        changes |= {} if execution.hostfile is None else {"min_nodes": 1}  # any that answers
    return execution.model_copy(update=changes)


class LaunchCoordinator:
    """One attempt: starts the ranks, follows them until they end, stops them.

    `deadline`: end of the stage's time limit on the clock of `time.monotonic`.
    """

    def __init__(self, launcher: Launcher, work: LaunchRequest, deadline: float) -> None:
        self.launcher, self.work, self.build, self.deadline = launcher, work, work.build, deadline
        self.cancel_poll = cancel_requests.CancelPoll(work.build.path)
        self.woke = -math.inf  # when this process last went on after it had stood still
        if work.launch:
            fence = start_attempt(work.build.path, work.launch)
            self.work, self.cancel_poll.fence = replace(work, token=fence.token), fence

    def run(self) -> StageResult:
        """Run the ranks to their end; see `launch_result`."""
        ranks = self.launcher.start(self.work)
        state = LaunchState(
            self.work.job.stage, self.build, ranks, local_directory(self.build.path) / LOGS
        )
        try:
            self._watch(ranks, state)
        except BaseException as error:
            ranks.stop(state.grace)
            # What ranks say while they end tells whether a checkpoint was saved.
            self._drain(ranks, state)
            # KeyboardInterrupt or Prefect's termination, not a failure
            is_interrupted = not isinstance(error, Exception)
            if is_interrupted and state.stopped:
                raise StoppedError(state.stopped_sentence()) from None
            raise
        finally:
            # Whoever has not ended by now is killed: no rank may outlive the lock on the directory.
            ranks.stop(0)
            self._drain(ranks, state)
            ranks.close()
        return launch_result(state)

    @staticmethod
    def _drain(started: RankGroup, state: LaunchState) -> None:
        """Process the remaining events; errors must not hide why the ranks were stopped."""
        with suppress(Exception):
            while events := started.events(0):
                state.update(events)

    def _watch(self, started: RankGroup, state: LaunchState) -> None:
        """Follow the ranks until all ended; return soon after the first failure or last result."""
        deadline: float | None = None
        last = time.monotonic()
        while not started.finished:
            events, now = started.events(POLL_SECONDS), time.monotonic()
            self.woke, last = now if now > last + ASLEEP_SECONDS else self.woke, now
            state.update(events)
            self._raise_if_stop_requested()
            if state.hung and not state.failed:
                return
            if state.ended_by_sigterm or state.silent:
                started.stop(state.grace)
                return
            if deadline is None and (state.failed or state.all_succeeded):
                # after its result a rank only exits, which takes a while on a busy host
                patient = state.stopping or not state.failed
                deadline = time.monotonic() + (state.grace if patient else PEER_SECONDS)
            if deadline is not None and time.monotonic() > deadline:
                return

    def _raise_if_stop_requested(self) -> None:
        """Raise KeyboardInterrupt if the run was asked to stop, or an error after the deadline."""
        if self.build.report.stop_requested() or self.cancel_poll():
            raise KeyboardInterrupt
        if time.monotonic() > self.deadline:
            raise TimeLimitError(
                f"{self.work.job.stage} took longer than timeout_minutes "
                f"({self.work.execution.timeout_minutes:g}) and was stopped; "
                "raise it, or run again to continue"
            )
