"""The end of a launch: the stage's result, or of all that went wrong the error that counts.

The first of these counts: a rank hangs; a rank was killed from outside (the others only report a
lost peer); SIGTERM ended a rank; the launch itself failed; ranks report errors, of which the most
specific one is raised.
"""

from __future__ import annotations

import re
import signal

from cloze.core.errors import BY_EXIT_CODE, ClozeError, StoppedError, error_class
from cloze.core.processes import describe_exit
from cloze.core.stages.stage import StageResult
from cloze.flows.launch.launch_state import LaunchState
from cloze.flows.launch.protocol import Event, PreemptedError, RanksLostError

_LIBRARIES = re.compile(
    r"gloo|nccl|TCPStore|DistNetworkError|DistBackendError|DistStoreError", re.IGNORECASE
)
_CONNECTION_LOST = re.compile(
    r"connection (?:was )?(?:reset|closed|refused)(?: by (?:remote )?peer)?|connectFullMesh "
    r"failed|broken pipe|timed out|ncclRemoteError",
    re.IGNORECASE,
)


def launch_result(state: LaunchState) -> StageResult:
    """Return the stage's result once all ranks have ended.

    Raises:
        RanksLostError: a rank was killed, or a host is gone; PreemptedError if that was, or
            a stop was, the scheduler's doing.
        StoppedError: the ranks stopped on request.
        ClozeError: a rank failed; the most specific of several errors. Errors have the step.
    """
    try:
        return _result(state)
    except ClozeError as error:
        error.step = state.step or None
        if state.preempted and isinstance(error, (RanksLostError, StoppedError)):
            raise PreemptedError(f"{state.stage} was preempted: {error}") from None
        raise


def _result(state: LaunchState) -> StageResult:
    if state.hung is not None:
        raise _hang(state, *state.hung)
    if state.first_killed is not None:
        raise _death(state, state.first_killed)
    if state.ended_by_sigterm:
        otherwise = f"{state.stage} was stopped (SIGTERM); run again to continue"
        raise StoppedError(state.stopped_sentence(otherwise))
    if state.fault is not None and state.silent and state.stopped:
        raise type(state.fault)(f"{state.fault}; {state.stopped_sentence()}")
    if state.fault is not None:
        raise state.fault
    _raise_if_failed(state)
    event = state.endings.get(state.ranks[0], {})
    if "outcome" not in event:
        raise ClozeError(
            f"{state.stage} ended without a result; its output is in {_log(state, state.ranks[0])}"
        )
    state.build.counters.update(event["counters"])
    return StageResult(**event["outcome"])


def _raise_if_failed(state: LaunchState) -> None:
    """Raise the most specific error of the ranks that ended without a result."""
    failed = {
        rank: code
        for rank in state.ranks
        # with a result it has succeeded, even if it was killed because its exit took long
        if "outcome" not in state.endings.get(rank, {})
        and (code := state.codes.get(rank, -signal.SIGKILL))
    }
    if not failed:
        return
    errors = [(rank, event) for rank, event in sorted(state.endings.items()) if "error" in event]
    # a library's error: the first failed rank's is specific, the others only report a lost peer
    errors.sort(key=lambda error: (_vague(error[1]), error[0] != state.first_failed))
    stopped = StoppedError.exit_code
    if stopped in failed.values() and all(event["exit_code"] == stopped for _, event in errors):
        raise StoppedError(state.stopped_sentence())
    if not errors:
        raise _death(
            state, next(iter(failed)) if state.first_failed is None else state.first_failed
        )
    rank, event = errors[0]
    _raise_if_peer_lost(state, rank, event)
    origin = f"rank {rank} on host {host}; " if (host := state.started.host(rank)) else ""
    hint = f" ({origin}log: {state.logs})" if event.get("unexpected") else ""
    raise error_class(event, RanksLostError)(event["error"] + hint)


def _raise_if_peer_lost(state: LaunchState, rank: int, event: Event) -> None:
    """Raise RanksLostError if a network library's error only says that a peer is gone."""
    if (
        event.get("unexpected")
        and _LIBRARIES.search(event["error"])
        and (match := _CONNECTION_LOST.search(event["error"]))
    ):
        raise RanksLostError(
            f"{_name(state, rank)} has lost its connection to another rank ({match[0]}): that "
            f"rank, its host or the network has failed; read that rank's log, and run again to "
            f"continue (log: {_log(state, rank)})"
        )


def _death(state: LaunchState, rank: int) -> RanksLostError:
    """Return the error of a rank that ended without a message."""
    code = state.codes.get(rank, -signal.SIGKILL)
    error = RanksLostError(
        f"{_name(state, rank)} {describe_exit(code, rank in state.short_of_memory)}; its output is "
        f"in {_log(state, rank)}"
    )
    error.process_died = code < 0
    return error


def _hang(state: LaunchState, rank: int, sentence: str) -> RanksLostError:
    stacks = f"the stacks of all ranks are in {state.logs}/rank*.log"
    if len(state.ranks) == 1:
        stacks = f"its stacks are in {_log(state, rank)}"
    error = RanksLostError(
        f"{_name(state, rank)} {sentence}; {stacks}; run again"
        f"{' to continue from the newest checkpoint' if state.step else ''}"
    )
    error.process_died = True
    return error


def _name(state: LaunchState, rank: int) -> str:
    host = state.started.host(rank)
    several = len(state.ranks) > 1 or state.build.execution.nodes > 1 or rank > 0
    name = f"{state.stage} rank {rank}" if several else state.stage
    return f"{name} on host {host}" if host else name


def _log(state: LaunchState, rank: int) -> str:
    return str(state.logs / f"rank{rank}.log")


def _vague(event: Event) -> int:
    """Grade the vagueness of an error: 0 a user's error, 1 a message of Cloze, 2 a library's."""
    return 0 if event["exit_code"] in BY_EXIT_CODE else 2 if event.get("unexpected") else 1
