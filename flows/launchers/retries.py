"""Trying again: what can pass by itself, how long to wait for that, and with how many processes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipeline.core.errors import ClozeError, DataError, Stopped, UsageError
from pipeline.core.execution import Execution

LONGEST_SECONDS = 600.0
DEATHS = 2  # of a process, after which one fewer is tried
_NUMBER = re.compile(r"\d+(\.\d+)?")


def can_pass(error: BaseException) -> bool:
    """Whether a second try may end otherwise: not after bad usage or config, bad input data, or a stop that was asked for."""
    return isinstance(error, Exception) and not isinstance(error, (UsageError, DataError, Stopped))


def delay(attempt: int, first: float) -> float:
    """Seconds to wait after try number `attempt` (from 1): twice as long each time, at most ten minutes."""
    return float(min(first * 2 ** (attempt - 1), LONGEST_SECONDS))


class Tries:
    """The failures of one node, or one training, so far.

    Attributes:
        execution: how the next try is to be run: with fewer processes where one has died twice or GPUs are gone, and that is allowed.
    """

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self._before: tuple[int, str] | None = None
        self._deaths = 0

    def may_pass(self, error: BaseException, gpus: Sequence[str] | None = None) -> bool:
        """Whether another try may end otherwise: not what cannot pass, and not what failed twice at the same step in the same words.

        Args:
            gpus: those that answer now, by CUDA's numbers; None: it computes elsewhere.
        """
        if not can_pass(error):
            return False
        now = _place(error)
        again, self._before = now is not None and now == self._before, now
        fewer = self._fewer(error, gpus)
        return fewer or not again

    def _fewer(self, error: BaseException, gpus: Sequence[str] | None) -> bool:
        """Whether the next try has fewer processes than this one."""
        least, count = self.execution.min_processes, self.execution.processes
        self._deaths += isinstance(error, ClozeError) and error.died
        if least is None:
            return False
        left = gpus if gpus is None or not self.execution.devices else [one for one in self.execution.devices if one in gpus]
        if left is not None and len(left) < count:
            wanted = len(left)
        elif self._deaths >= DEATHS:
            wanted, self._deaths = count - 1, 0
        else:
            wanted = count
        wanted = max(least, wanted)
        given = {"devices": tuple(left[:wanted])} if left is not None and self.execution.devices else {}
        self.execution = self.execution.model_copy(update={"processes": wanted, **given})
        return wanted < count


def _place(error: BaseException) -> tuple[int, str] | None:
    """The step of a training that failed, and how, without numbers (processes, seconds); None: it is no training's."""
    step = error.step if isinstance(error, ClozeError) else None
    return None if step is None else (step, _NUMBER.sub("", str(error)))
