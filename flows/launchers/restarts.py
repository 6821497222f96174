"""Starting lost ranks again: on the hosts that are left, from the newest checkpoint, a few times, ever more patiently.

What would end the same way again is not tried: bad usage, bad data, a stop, and an error that comes twice in the same words at the same
step. On one machine the next try may have fewer processes (`retries.Tries`); the global batch and its order stay.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from flows.launchers import gpus
from flows.launchers.cancelling import Asked
from flows.launchers.protocol import Lost, Unanswered, Work
from flows.launchers.retries import Tries, delay
from pipeline.core.errors import UsageError
from pipeline.core.execution import Execution
from pipeline.core.stage import Outcome

USUAL = 3  # restarts, where fewer hosts than all of them are allowed to go on
FIRST_SECONDS = 2.0

log = logging.getLogger(__name__)


def allowed(execution: Execution) -> int:
    """How many restarts there may be."""
    if execution.restarts is not None:
        return execution.restarts
    return USUAL if execution.min_nodes is not None or execution.min_processes is not None else 0


def patiently(work: Work, run: Callable[[Work], Outcome]) -> Outcome:
    """What `run` gives, tried again after what may pass.

    Raises what the last try raised.
    """
    attempt, tries = 0, Tries(work.execution)
    while True:
        try:
            return run(work)
        except Lost as error:
            if attempt == 0 and isinstance(error, Unanswered):
                raise UsageError(str(error)) from None
            attempt += 1
            error.step = error.step or 0  # its ranks had not begun
            if attempt > allowed(work.execution) or not tries.may_pass(error, _gpus(work.execution)):
                raise
            seconds, before = delay(attempt, FIRST_SECONDS), work.processes
            work = _with(work, tries.execution)
            fewer = f" with {work.processes} processes" if work.processes < before else ""
            _tell(work, f"{error}; started again{fewer} in {seconds:.0f} s, restart {attempt} of {allowed(work.execution)}")
            _wait(work, seconds)


def _with(work: Work, execution: Execution) -> Work:
    """The work with the next try's processes."""
    if execution == work.execution:
        return work
    return replace(
        work,
        processes=execution.processes,
        job=replace(work.job, execution=execution.model_dump(mode="json")),
        build=replace(work.build, execution=execution),
    )


def _gpus(execution: Execution) -> tuple[str, ...] | None:
    """The GPUs that answer, where this machine's alone are computed on."""
    if execution.launcher != "local" or execution.nodes > 1 or execution.device == "cpu":
        return None
    return gpus.numbers() or None


def _tell(work: Work, sentence: str) -> None:
    log.warning("%s", sentence)
    work.build.report.progress(0, None, "steps", {"warning": sentence})


def _wait(work: Work, seconds: float) -> None:
    """Raises KeyboardInterrupt where the run is asked to end meanwhile."""
    deadline, asked = time.monotonic() + seconds, Asked(work.build.path)
    while time.monotonic() < deadline:
        if work.build.report.stop_asked() or asked():
            raise KeyboardInterrupt
        time.sleep(0.2)
