"""Starting lost ranks again: on the hosts that are left, from the newest checkpoint, a few times, ever more patiently.

What would end the same way again is not tried: bad usage, bad data, a stop, and an error that comes twice in the same words without a
newer checkpoint in between.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from flows.launchers.cancelling import Asked
from flows.launchers.protocol import Lost, Unanswered, Work
from flows.launchers.retries import delay
from pipeline.core import checkpoints
from pipeline.core.errors import UsageError
from pipeline.core.execution import Execution
from pipeline.core.stage import Outcome

USUAL = 3  # restarts, where fewer hosts than all of them are allowed to go on
FIRST_SECONDS = 2.0

log = logging.getLogger(__name__)


def allowed(execution: Execution) -> int:
    """How many restarts there may be."""
    return execution.restarts if execution.restarts is not None else USUAL if execution.min_nodes is not None else 0


def patiently(work: Work, run: Callable[[], Outcome]) -> Outcome:
    """What `run` gives, tried again after what may pass.

    Raises what the last try raised.
    """
    before: tuple[str, str | None] | None = None
    attempt = 0
    while True:
        try:
            return run()
        except Lost as error:
            if attempt == 0 and isinstance(error, Unanswered):
                raise UsageError(str(error)) from None
            attempt += 1
            now = str(error), newest(work.build.path)
            if attempt > allowed(work.execution) or now == before:
                raise
            before, seconds = now, delay(attempt, FIRST_SECONDS)
            _tell(work, f"{error}; started again in {seconds:.0f} s, restart {attempt} of {allowed(work.execution)}")
            _wait(work, seconds)


def newest(path: str) -> str | None:
    """The newest complete checkpoint of a training's directory."""
    found = checkpoints.complete_steps(path)
    return found[-1] if found else None


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
