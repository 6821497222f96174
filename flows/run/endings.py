"""How a run or a node ended, in words: state and message for its record."""

from __future__ import annotations

from cloze.core.errors import StoppedError
from cloze.flows.graph import schedule, stages
from cloze.flows.graph.plan import PlannedNode
from cloze.flows.run import status_file


def final_state(error: BaseException | None) -> str:
    if error is None:
        return status_file.FINISHED
    return status_file.CANCELLED if is_stop(error) else status_file.FAILED


def is_stop(error: BaseException) -> bool:
    return isinstance(error, StoppedError) or not isinstance(error, Exception)


def message(
    error: BaseException | None, step: PlannedNode | None = None, state: str = ""
) -> str | None:
    """Return what happened; None: nothing.

    Args:
        step, state: node that was interrupted, and its state until then.
    """
    if error is None:
        return None
    if not isinstance(error, KeyboardInterrupt):
        return schedule.describe_error(error)
    if state in (status_file.QUEUED, status_file.WAITING):
        return "stopped while it waited, before it started; run again"
    if step is not None and stages.stage(step.node.stage).parallel:
        return "stopped before the first checkpoint; run again"
    return "stopped; run again"
