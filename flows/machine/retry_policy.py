"""Retry rules: which errors are transient, how long to wait, and how many processes to start."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from cloze.core import errors
from cloze.core.errors import ClozeError
from cloze.core.stages.execution import Execution
from cloze.flows.machine.slots import number_of

LONGEST_SECONDS = 600.0
DEATHS = 2  # dead processes, after which a retry uses one process fewer
_NUMBER = re.compile(r"\d+(\.\d+)?")


def is_retryable(error: BaseException) -> bool:
    """Return False if a retry fails in the same way, and for requested stops and time limits."""
    certain = (
        errors.UsageError, errors.DataError, errors.NotFiniteError, errors.StoppedError,
        errors.TimeLimitError,
    )  # fmt: skip
    return isinstance(error, Exception) and not isinstance(error, certain)


def backoff_seconds(attempt: int, first: float) -> float:
    """Return the seconds to wait after attempt number `attempt`, from 1: doubling, at most 600."""
    return float(min(first * 2 ** (attempt - 1), LONGEST_SECONDS))


class RetryPolicy:
    """Failures of one node or training so far, and the execution of its next attempt."""

    def __init__(self, execution: Execution) -> None:
        # settings of the next attempt. It has fewer processes after two dead processes or with lost
        # GPUs, if `min_processes` allows that.
        self.execution = execution
        self._before: tuple[int, str] | None = None  # step and message, without numbers
        self._deaths = 0

    def should_retry(self, error: BaseException, gpus: Sequence[str] | None = None) -> bool:
        """Check whether a retry may succeed, and adapt `execution`.

        After two failures at the same step with the same message, a training is retried only with
        fewer processes.

        `gpus`: CUDA numbers of the GPUs that respond; None: the ranks use no GPU of this host.
        """
        if not is_retryable(error):
            return False
        step = error.step if isinstance(error, ClozeError) else None
        failure = None if step is None else (step, _NUMBER.sub("", str(error)))
        is_repeated, self._before = failure is not None and failure == self._before, failure
        fewer = self._fewer(error, gpus)
        return fewer or not is_repeated

    def _fewer(self, error: BaseException, gpus: Sequence[str] | None) -> bool:
        """Set the number of processes of the next attempt; return whether it is lower."""
        minimum, count = self.execution.min_processes, self.execution.processes
        self._deaths += isinstance(error, ClozeError) and error.process_died
        if minimum is None:
            return False
        remaining, gpu_ids = gpus, self.execution.gpu_ids
        if gpus is not None and gpu_ids:
            available = {number_of(gpu) for gpu in gpus}
            remaining = [gpu for gpu in gpu_ids if number_of(gpu) in available]
        if remaining is not None and len(remaining) < count:
            target = len(remaining)
        elif self._deaths >= DEATHS:
            target, self._deaths = count - 1, 0
        else:
            target = count
        target = max(minimum, target)
        changes: dict[str, Any] = {"processes": target}
        if remaining is not None and gpu_ids:
            changes["gpu_ids"] = tuple(remaining[:target])
        self.execution = self.execution.model_copy(update=changes)
        return target < count
