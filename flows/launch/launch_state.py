"""State of a launch: collects the ranks' events and derives the result, or the error that counts.

If a rank was killed from outside, that is the error; the other ranks only report a lost peer.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cloze.core.errors import BY_EXIT_CODE, ClozeError, StoppedError, error_class
from cloze.core.processes import describe_exit
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.core.stages.worker import LOGS
from cloze.flows.launch import event_files
from cloze.flows.launch.cancel_requests import GRACE
from cloze.flows.launch.protocol import Event, PreemptedError, RankEvent, RankGroup, RanksLostError

_LIBRARIES = re.compile(
    r"gloo|nccl|TCPStore|DistNetworkError|DistBackendError|DistStoreError", re.IGNORECASE
)
_CONNECTION_LOST = re.compile(
    r"connection (?:was )?(?:reset|closed|refused)(?: by (?:remote )?peer)?|connectFullMesh "
    r"failed|broken pipe|timed out|ncclRemoteError",
    re.IGNORECASE,
)


class LaunchState:
    """Consumer of rank events; forwards rank 0's reports.

    Attributes:
        first_failed: rank that failed first; the other ranks are stopped because of it.
        fault: error of the launch itself.
        grace: grace period in seconds.
    """

    def __init__(self, stage: str, build: BuildContext, started: RankGroup, logs: Path) -> None:
        """Start without events.

        Args:
            stage: name of the stage.
            build: build context of the coordinator.
            started: the ranks.
            logs: directory of the ranks' output.
        """
        self.stage, self.build, self.started, self.logs = stage, build, started, logs
        self.first_failed: int | None = None
        self.fault: ClozeError | None = None
        # first rank killed by a signal that this launch did not send
        self._killed: int | None = None
        self._final: dict[int, Event] = {}  # rank -> last event
        self._codes: dict[int, int] = {}  # rank -> exit code
        self._short: set[int] = set()  # ranks whose hosts were short of memory
        self._hung: tuple[int, str] | None = None  # hanging rank, and its description
        self.silent = False  # a host shows no sign of life; its ranks and the others may save
        self._is_preempted = False  # the scheduler gave a host to another job
        self._step = 0  # largest step of all ranks
        self.grace = build.execution.min_grace_seconds
        self._progress: tuple[float, float | None, str] = (0, None, "steps")  # as last reported

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
        return rank is not None and self._failure(rank) == StoppedError.exit_code

    @property
    def hung(self) -> bool:
        """A rank hangs. It and the ranks that wait for it ignore signals."""
        return self._hung is not None

    @property
    def ended_by_sigterm(self) -> bool:
        """SIGTERM ended a rank before it could handle the signal; all ranks are then stopped."""
        rank = self.first_failed
        if rank is None or rank in self._final:
            return False
        return self._codes.get(rank) == -signal.SIGTERM

    @property
    def all_succeeded(self) -> bool:
        """Every rank has reported its result and only has to exit."""
        return all("outcome" in self._final.get(rank, {}) for rank in self.ranks)

    @property
    def stopped(self) -> bool:
        """A rank stopped on request. It may have been killed later because its exit took long."""
        reported = [event.get("exit_code") for event in self._final.values()]
        return StoppedError.exit_code in (*reported, *self._codes.values())

    def update(self, events: Iterable[RankEvent]) -> None:
        """Process events: find the rank that failed first, and the rank that was killed first.

        A rank that aborts after another failure was not killed: libraries abort when a peer ends.
        """
        events, stopped_ranks = list(events), set()
        for rank, event in events:
            if rank is None and "waiting" in event:
                self.build.report.progress(*self._progress, {"note": event["waiting"]})
                self.build.report.queued(event["waiting"])
            elif rank is None and "preempted" in event:
                self._is_preempted = True
            elif rank is None and "figures" in event:
                self.build.report.progress(*self._progress, event["figures"])
            elif rank is None:
                self.silent |= bool(event.get("silent"))
                self.fault = self.fault or error_class(event, RanksLostError)(event["fault"])
            elif "ended" in event:
                self._codes[rank] = event["ended"]
                stopped_ranks |= {rank} if event["ours"] else set()
                self._short |= {rank} if event.get("short") else set()
                self._step = max(self._step, event.get("step", 0))
            elif "hung" in event:
                self._step = max(self._step, event["step"])
                if not self.failed:
                    self._hung = self._hung or (rank, event["hung"])
            elif "grace" in event:
                self._take_time(float(event["grace"]))
            else:
                self._handle_report(rank, event)
        ranks = {rank for rank, _ in events if rank is not None} - stopped_ranks
        failed = sorted(
            filter(self._failure, ranks),
            key=lambda rank: (self._codes.get(rank) == -signal.SIGABRT, rank),
        )
        if failed and self.first_failed is None:
            self.first_failed = failed[0]
        for rank in failed:
            code = self._codes.get(rank, 0)
            is_silent = rank not in self._final  # otherwise it died during its exit
            is_abort = code == -signal.SIGABRT and rank != self.first_failed
            if code < 0 and code != -signal.SIGTERM and is_silent and not is_abort:
                self._killed = rank if self._killed is None else self._killed

    def _handle_report(self, rank: int, event: Event) -> None:
        for kind in ("progress", "metrics", "checkpoint", "records"):
            if kind in event:
                if rank == self.ranks[0]:
                    self._report(kind, event[kind])
                return
        self._final[rank] = event

    def _report(self, kind: str, values: Any) -> None:
        report = self.build.report
        if kind == "progress":
            self._progress = values[0], values[1], values[2]
            report.progress(*values)
        elif kind == "metrics":
            report.metrics(values)
        elif kind == "checkpoint":
            report.checkpoint(*values)
        else:
            report.predictions(values)

    def _take_time(self, seconds: float) -> None:
        """Extend the grace period to the shutdown time that a rank reported."""
        if self.build.execution.grace_seconds is None and seconds > self.grace:
            self.grace = seconds
            self.build.report.shutdown_time(seconds)
            with suppress(OSError):  # ranks report a full disk
                # for `cloze cancel`
                event_files.write_json(self.build.file(LOGS, GRACE), {"seconds": seconds})

    def _failure(self, rank: int) -> int:
        """Return the exit code of a failed rank, of its process or as reported; 0: no failure."""
        return self._codes.get(rank) or int(self._final.get(rank, {}).get("exit_code", 0))

    def result(self) -> StageResult:
        """Return the stage's result once all ranks have ended.

        Raises:
            RanksLostError: a rank was killed, or a host is gone; PreemptedError if that was, or
                a stop was, the scheduler's doing.
            StoppedError: the ranks stopped on request.
            ClozeError: a rank failed; the most specific of several errors. Errors have the step.
        """
        try:
            return self._final_result()
        except ClozeError as error:
            error.step = self._step or None
            if self._is_preempted and isinstance(error, (RanksLostError, StoppedError)):
                raise PreemptedError(f"{self.stage} was preempted: {error}") from None
            raise

    def _final_result(self) -> StageResult:
        if self._hung is not None:
            raise self._hangs(*self._hung)
        if self._killed is not None:
            raise self._death(self._killed)
        if self.ended_by_sigterm:
            raise StoppedError(
                self.stopped_sentence(f"{self.stage} was stopped (SIGTERM); run again to continue")
            )
        # A rank with a result has succeeded, even if it was killed because its exit took long.
        succeeded = {rank for rank, event in self._final.items() if "outcome" in event}
        codes = {
            rank: 0 if rank in succeeded else self._codes.get(rank, -signal.SIGKILL)
            for rank in self.ranks
        }
        if self.fault is not None and self.silent and self.stopped:
            raise type(self.fault)(f"{self.fault}; {self.stopped_sentence()}")
        if self.fault is not None:
            raise self.fault
        if any(codes.values()):
            self._raise(codes)
        event = self._final.get(self.ranks[0], {})
        if "outcome" not in event:
            raise ClozeError(
                f"{self.stage} ended without a result; its output is in "
                f"{self.logs / f'rank{self.ranks[0]}.log'}"
            )
        self.build.counters.update(event["counters"])
        return StageResult(**event["outcome"])

    def _raise(self, codes: dict[int, int]) -> None:
        errors = [(rank, event) for rank, event in sorted(self._final.items()) if "error" in event]
        # a library's error: the first failed rank's is specific, the others only report a lost peer
        errors.sort(key=lambda error: (_vague(error[1]), error[0] != self.first_failed))
        if StoppedError.exit_code in codes.values() and all(
            event["exit_code"] == StoppedError.exit_code for _, event in errors
        ):
            raise StoppedError(self.stopped_sentence())
        if errors:
            rank, event = errors[0]
            self._raise_if_peer_lost(rank, event)
            origin = f"rank {rank} on host {host}; " if (host := self.started.host(rank)) else ""
            hint = f" ({origin}log: {self.logs})" if event.get("unexpected") else ""
            raise error_class(event, RanksLostError)(event["error"] + hint)
        failed = (rank for rank, code in codes.items() if code)
        raise self._death(next(failed) if self.first_failed is None else self.first_failed)

    def _raise_if_peer_lost(self, rank: int, event: Event) -> None:
        """Raise RanksLostError if a network library's error only says that a peer is gone."""
        if (
            event.get("unexpected")
            and _LIBRARIES.search(event["error"])
            and (match := _CONNECTION_LOST.search(event["error"]))
        ):
            raise RanksLostError(
                f"{self._who(rank)} has lost its connection to another rank ({match[0]}): that "
                f"rank, its host or the network has failed; read that rank's log, and run again to "
                f"continue (log: {self.logs / f'rank{rank}.log'})"
            )

    def _who(self, rank: int) -> str:
        host = self.started.host(rank)
        several = len(self.ranks) > 1 or self.build.execution.nodes > 1 or rank > 0
        name = f"{self.stage} rank {rank}" if several else self.stage
        return f"{name} on host {host}" if host else name

    def _death(self, rank: int) -> RanksLostError:
        """Return the error of a rank that ended without a message."""
        code = self._codes.get(rank, -signal.SIGKILL)
        error = RanksLostError(
            f"{self._who(rank)} {describe_exit(code, rank in self._short)}; its output is in "
            f"{self.logs / f'rank{rank}.log'}"
        )
        error.process_died = code < 0
        return error

    def _hangs(self, rank: int, sentence: str) -> RanksLostError:
        stacks = f"the stacks of all ranks are in {self.logs}/rank*.log"
        if len(self.ranks) == 1:
            stacks = f"its stacks are in {self.logs / f'rank{rank}.log'}"
        error = RanksLostError(
            f"{self._who(rank)} {sentence}; {stacks}; run again to continue from the newest "
            f"checkpoint"
        )
        error.process_died = True
        return error

    def stopped_sentence(self, otherwise: str | None = None) -> str:
        for event in self._final.values():
            if event.get("exit_code") == StoppedError.exit_code:
                return str(event["error"])
        return (
            otherwise or f"{self.stage} was stopped and saved a checkpoint; run again to continue"
        )


def _vague(event: Event) -> int:
    """Grade the vagueness of an error: 0 a user's error, 1 a message of Cloze, 2 a library's."""
    return 0 if event["exit_code"] in BY_EXIT_CODE else 2 if event.get("unexpected") else 1
