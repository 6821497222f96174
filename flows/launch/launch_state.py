"""State of a launch: what ranks, hosts and the scheduler have reported so far, and its result.

The first of these counts as the error of a launch: a rank hangs; a rank was killed from outside
(the others only report a lost peer); SIGTERM ended a rank; the launch itself failed; ranks report
errors, of which the most specific one is raised.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cloze.core.errors import BY_EXIT_CODE, ClozeError, StoppedError, error_class
from cloze.core.processes import describe_exit
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.core.stages.worker import LOGS
from cloze.flows.launch import event_files
from cloze.flows.launch.cancel_requests import GRACE
from cloze.flows.launch.protocol import (
    Event,
    PreemptedError,
    RankEvent,
    RankGroup,
    RanksLostError,
)

# What ranks report while they work, with rank 0's receiver; what else a rank reports ends it.
_REPORTS = {"metrics": "metrics", "records": "predictions", "checkpoint": "checkpoint"}
# A library's words for a peer that is gone: the rank that says so is not at fault.
_LIBRARIES = re.compile(
    r"gloo|nccl|TCPStore|DistNetworkError|DistBackendError|DistStoreError", re.IGNORECASE
)
_CONNECTION_LOST = re.compile(
    r"connection (?:was )?(?:reset|closed|refused)(?: by (?:remote )?peer)?|connectFullMesh "
    r"failed|broken pipe|timed out|ncclRemoteError",
    re.IGNORECASE,
)


@dataclass(slots=True)
class LaunchState:
    """Consumer of rank events; forwards rank 0's reports."""

    stage: str
    build: BuildContext  # of the coordinator
    started: RankGroup
    logs: Path  # directory of the ranks' output
    endings: dict[int, Event] = field(default_factory=dict)  # what ranks reported last
    codes: dict[int, int] = field(default_factory=dict)  # exit codes of ranks' processes
    short_of_memory: set[int] = field(default_factory=set)  # ranks whose hosts were so at their end
    step: int = 0  # largest of all ranks
    first_failed: int | None = None  # rank; the others are stopped because of it
    first_killed: int | None = None  # rank, by a signal that this launch did not send
    # A rank, and how it hangs. It and those that wait for it ignore signals.
    hung: tuple[int, str] | None = None
    fault: ClozeError | None = None  # of the launch itself
    silent: bool = False  # a host shows no sign of life; its ranks and the others may save
    preempted: bool = False  # the scheduler gave a host to another job
    grace: float = 0.0  # seconds that ranks have to save
    _progress: tuple[float, float | None, str] = (0, None, "steps")  # as last reported

    def __post_init__(self) -> None:
        self.grace = self.build.execution.min_grace_seconds

    @property
    def ranks(self) -> Sequence[int]:
        return self.started.ranks

    @property
    def failed(self) -> bool:
        return self.first_failed is not None or self.fault is not None

    @property
    def stopping(self) -> bool:
        """The first failure is a rank that stopped on request; the others are about to stop."""
        rank = self.first_failed
        return rank is not None and self._exit_code(rank) == StoppedError.exit_code

    @property
    def ended_by_sigterm(self) -> bool:
        """SIGTERM ended a rank before it could handle the signal; all ranks are then stopped."""
        rank = self.first_failed
        is_silent = rank is not None and rank not in self.endings
        return is_silent and self.codes.get(rank or 0) == -signal.SIGTERM

    @property
    def all_succeeded(self) -> bool:
        """Every rank has reported its result and only has to exit."""
        return all("outcome" in self.endings.get(rank, {}) for rank in self.ranks)

    @property
    def stopped(self) -> bool:
        """A rank stopped on request. It may have been killed later because its exit took long."""
        reported = [event.get("exit_code") for event in self.endings.values()]
        return StoppedError.exit_code in (*reported, *self.codes.values())

    def update(self, events: Iterable[RankEvent]) -> None:
        """Process events: find the rank that failed first, and the rank that was killed first."""
        reported: set[int] = set()
        ended_by_us: set[int] = set()
        for rank, event in events:
            if rank is None:
                self._handle_launcher_event(event)
                continue
            self._handle_rank_event(rank, event)
            reported.add(rank)
            if "ended" in event and event["ours"]:
                ended_by_us.add(rank)
        # Libraries abort when a peer ends, so an abort after another failure is no kill.
        failed = sorted(
            filter(self._exit_code, reported - ended_by_us),
            key=lambda rank: (self.codes.get(rank) == -signal.SIGABRT, rank),
        )
        if failed and self.first_failed is None:
            self.first_failed = failed[0]
        for rank in failed:
            code = self.codes.get(rank, 0)
            is_abort = code == -signal.SIGABRT and rank != self.first_failed
            is_silent = rank not in self.endings  # otherwise it died during its exit
            if code < 0 and code != -signal.SIGTERM and is_silent and not is_abort:
                self.first_killed = rank if self.first_killed is None else self.first_killed

    def _handle_launcher_event(self, event: Event) -> None:
        report = self.build.report
        if "waiting" in event:
            report.progress(*self._progress, {"note": event["waiting"]})
            report.queued(event["waiting"])
        elif "preempted" in event:
            self.preempted = True
        elif "figures" in event:
            report.progress(*self._progress, event["figures"])
        else:
            self.silent |= bool(event.get("silent"))
            self.fault = self.fault or error_class(event, RanksLostError)(event["fault"])

    def _handle_rank_event(self, rank: int, event: Event) -> None:
        report, is_first = self.build.report, rank == self.ranks[0]
        self.step = max(self.step, event.get("step", 0))
        if "progress" in event:
            if is_first:
                done, total, unit, figures = event["progress"]
                self._progress = done, total, unit
                report.progress(done, total, unit, figures)
        elif kind := next((kind for kind in _REPORTS if kind in event), None):
            values = event[kind] if kind == "checkpoint" else [event[kind]]
            if is_first:
                getattr(report, _REPORTS[kind])(*values)
        elif "ended" in event:
            self.codes[rank] = event["ended"]
            self.short_of_memory |= {rank} if event.get("short") else set()
        elif "hung" in event:
            self.hung = self.hung or (None if self.failed else (rank, event["hung"]))
        elif "grace" not in event:
            self.endings[rank] = event
        elif self.build.execution.grace_seconds is None and float(event["grace"]) > self.grace:
            self.grace = float(event["grace"])  # a rank needs longer to save
            report.shutdown_time(self.grace)
            with suppress(OSError):  # ranks report a full disk
                # for `cloze cancel`
                event_files.write_json(self.build.file(LOGS, GRACE), {"seconds": self.grace})

    def _exit_code(self, rank: int) -> int:
        """Return the exit code of a failed rank, of its process or as reported; 0: no failure."""
        return self.codes.get(rank) or int(self.endings.get(rank, {}).get("exit_code", 0))

    def stopped_sentence(self, otherwise: str | None = None) -> str:
        for event in self.endings.values():
            if event.get("exit_code") == StoppedError.exit_code:
                return str(event["error"])
        usual = f"{self.stage} was stopped and saved a checkpoint; run again to continue"
        return otherwise or usual


# The end of a launch.


def launch_result(state: LaunchState) -> StageResult:
    """Return the stage's result once all ranks have ended.

    Raises:
        RanksLostError: a rank was killed, or a host is gone; PreemptedError if that was, or
            a stop was, the scheduler's doing.
        StoppedError: the ranks stopped on request.
        ClozeError: a rank failed; the most specific of several errors. Errors have the step.
    """
    try:
        if (error := _error(state)) is not None:
            raise error
        event = state.endings.get(state.ranks[0], {})
        if "outcome" not in event:
            log = _log(state, state.ranks[0])
            raise ClozeError(f"{state.stage} ended without a result; its output is in {log}")
    except ClozeError as error:
        error.step = state.step or None
        if state.preempted and isinstance(error, (RanksLostError, StoppedError)):
            raise PreemptedError(f"{state.stage} was preempted: {error}") from None
        raise
    state.build.counters.update(event["counters"])
    return StageResult(**event["outcome"])


def _error(state: LaunchState) -> ClozeError | None:
    """Return the error that counts; None: each rank has ended with a result."""
    if state.hung is not None:
        rank, sentence = state.hung
        stacks = f"the stacks of all ranks are in {state.logs}/rank*.log"
        stacks = f"its stacks are in {_log(state, rank)}" if len(state.ranks) == 1 else stacks
        again = "run again" + " to continue from the newest checkpoint" * bool(state.step)
        hang = RanksLostError(f"{_name(state, rank)} {sentence}; {stacks}; {again}")
        hang.process_died = True
        return hang
    if state.first_killed is not None:
        return _death(state, state.first_killed)
    if state.ended_by_sigterm:
        otherwise = f"{state.stage} was stopped (SIGTERM); run again to continue"
        return StoppedError(state.stopped_sentence(otherwise))
    if state.fault is not None and state.silent and state.stopped:
        return type(state.fault)(f"{state.fault}; {state.stopped_sentence()}")
    return state.fault or _reported_error(state)


def _reported_error(state: LaunchState) -> ClozeError | None:
    """Return the most specific error of the ranks that ended without a result."""
    failed = {
        rank: code
        for rank in state.ranks
        # with a result it has succeeded, even if it was killed because its exit took long
        if "outcome" not in state.endings.get(rank, {})
        and (code := state.codes.get(rank, -signal.SIGKILL))
    }
    if not failed:
        return None
    errors = [(rank, event) for rank, event in sorted(state.endings.items()) if "error" in event]
    # a library's error: the first failed rank's is specific, the others only report a lost peer
    errors.sort(key=lambda error: (_vague(error[1]), error[0] != state.first_failed))
    stopped = StoppedError.exit_code
    if stopped in failed.values() and all(event["exit_code"] == stopped for _, event in errors):
        return StoppedError(state.stopped_sentence())
    if not errors:
        first = next(iter(failed)) if state.first_failed is None else state.first_failed
        return _death(state, first)
    rank, event = errors[0]
    lost = _LIBRARIES.search(event["error"]) and _CONNECTION_LOST.search(event["error"])
    if event.get("unexpected") and lost:
        return RanksLostError(
            f"{_name(state, rank)} has lost its connection to another rank ({lost[0]}): that "
            f"rank, its host or the network has failed; read that rank's log, and run again to "
            f"continue (log: {_log(state, rank)})"
        )
    origin = f"rank {rank} on host {host}; " if (host := state.started.host(rank)) else ""
    hint = f" ({origin}log: {state.logs})" if event.get("unexpected") else ""
    return error_class(event, RanksLostError)(event["error"] + hint)


def _death(state: LaunchState, rank: int) -> RanksLostError:
    """Return the error of a rank that ended without a message."""
    code = state.codes.get(rank, -signal.SIGKILL)
    how = describe_exit(code, rank in state.short_of_memory)
    error = RanksLostError(f"{_name(state, rank)} {how}; its output is in {_log(state, rank)}")
    error.process_died = code < 0
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
