"""State of a launch: what ranks, hosts and the scheduler have reported so far.

`launch_result.py` derives from it the stage's result, or the error that counts.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cloze.core.errors import ClozeError, StoppedError, error_class
from cloze.core.stages.stage import BuildContext
from cloze.core.stages.worker import LOGS
from cloze.flows.launch import event_files
from cloze.flows.launch.cancel_requests import GRACE
from cloze.flows.launch.protocol import Event, RankEvent, RankGroup, RanksLostError

# kinds of what rank 0 reports while it works; what else a rank reports ends it
_REPORTS = ("progress", "metrics", "checkpoint", "records")


class LaunchState:
    """Consumer of rank events; forwards rank 0's reports.

    Attributes:
        endings: rank -> what it reported last: its outcome, or its error.
        codes: rank -> exit code of its process.
        short_of_memory: ranks whose hosts were short of memory when they ended.
        step: largest step of all ranks.
        first_failed: rank that failed first; the other ranks are stopped because of it.
        first_killed: rank that was first killed by a signal that this launch did not send.
        hung: a hanging rank, and how it hangs. It and those that wait for it ignore signals.
        fault: error of the launch itself.
        silent: a host shows no sign of life; its ranks and the others may save.
        preempted: the scheduler gave a host to another job.
        grace: grace period in seconds.
    """

    def __init__(self, stage: str, build: BuildContext, started: RankGroup, logs: Path) -> None:
        """Start without events."""
        self.stage, self.build, self.started, self.logs = stage, build, started, logs
        self.endings: dict[int, Event] = {}
        self.codes: dict[int, int] = {}
        self.short_of_memory: set[int] = set()
        self.step = 0
        self.first_failed: int | None = None
        self.first_killed: int | None = None
        self.hung: tuple[int, str] | None = None
        self.fault: ClozeError | None = None
        self.silent = self.preempted = False
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
        return rank is not None and self._exit_code(rank) == StoppedError.exit_code

    @property
    def ended_by_sigterm(self) -> bool:
        """SIGTERM ended a rank before it could handle the signal; all ranks are then stopped."""
        rank = self.first_failed
        if rank is None or rank in self.endings:
            return False
        return self.codes.get(rank) == -signal.SIGTERM

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
        self._find_failures(reported - ended_by_us)

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
        self.step = max(self.step, event.get("step", 0))
        kind = next((kind for kind in _REPORTS if kind in event), None)
        if kind is not None:
            if rank == self.ranks[0]:
                self._report(kind, event[kind])
        elif "ended" in event:
            self.codes[rank] = event["ended"]
            if event.get("short"):
                self.short_of_memory.add(rank)
        elif "hung" in event:
            if not self.failed:
                self.hung = self.hung or (rank, event["hung"])
        elif "grace" in event:
            self._extend_grace(float(event["grace"]))
        else:
            self.endings[rank] = event

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

    def _extend_grace(self, seconds: float) -> None:
        """Extend the grace period to the shutdown time that a rank reported."""
        if self.build.execution.grace_seconds is None and seconds > self.grace:
            self.grace = seconds
            self.build.report.shutdown_time(seconds)
            with suppress(OSError):  # ranks report a full disk
                # for `cloze cancel`
                event_files.write_json(self.build.file(LOGS, GRACE), {"seconds": seconds})

    def _find_failures(self, ranks: Iterable[int]) -> None:
        """Note who failed and who was killed first, of ranks that this launch did not end.

        Libraries abort when a peer ends, so an abort after another failure is no kill.
        """
        failed = sorted(
            filter(self._exit_code, ranks),
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

    def _exit_code(self, rank: int) -> int:
        """Return the exit code of a failed rank, of its process or as reported; 0: no failure."""
        return self.codes.get(rank) or int(self.endings.get(rank, {}).get("exit_code", 0))

    def stopped_sentence(self, otherwise: str | None = None) -> str:
        """Return what a rank said when it stopped on request."""
        for event in self.endings.values():
            if event.get("exit_code") == StoppedError.exit_code:
                return str(event["error"])
        return (
            otherwise or f"{self.stage} was stopped and saved a checkpoint; run again to continue"
        )
