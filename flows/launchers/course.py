"""What the ranks of one launch have told, and what that comes to: an outcome, or the error that counts.

A rank that something else killed is what is told: its peers only say that it is gone.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from flows.launchers import mailbox
from flows.launchers.cancelling import GRACE
from flows.launchers.protocol import Event, Lost, Started, Told
from pipeline.core.errors import BY_EXIT_CODE, ClozeError, Stopped
from pipeline.core.processes import ending
from pipeline.core.stage import Build, Outcome
from pipeline.core.worker import LOGS


class Course:
    """Takes events; passes on what rank 0 reports.

    Attributes:
        first_failed: the rank that failed first; the others are ended for its sake.
        fault: of the launch itself.
    """

    def __init__(self, stage: str, build: Build, started: Started, logs: Path) -> None:
        """Args: logs: where the ranks' output is."""
        self.stage, self.build, self.started, self.logs = stage, build, started, logs
        self.first_failed: int | None = None
        self.fault: ClozeError | None = None
        self._killed: int | None = None  # the first rank that a signal ended which we did not send
        self._final: dict[int, Event] = {}  # rank -> its last event
        self._codes: dict[int, int] = {}  # rank -> how its process ended
        self._short: set[int] = set()  # ranks whose hosts were short of memory
        self._hung: tuple[int, str] | None = None  # a rank that does not go on, and what it does
        self._step = 0  # the furthest that a rank was at
        self.grace = build.execution.least_grace
        self._progress: tuple[float, float | None, str] = (0, None, "steps")  # as it was told last

    @property
    def ranks(self) -> Sequence[int]:
        return self.started.ranks

    @property
    def failed(self) -> bool:
        return self.first_failed is not None or self.fault is not None

    @property
    def stopping(self) -> bool:
        """Whether what failed first is a rank that was asked to stop: the others are about to."""
        return self.first_failed is not None and self._failure(self.first_failed) == Stopped.exit_code

    @property
    def hung(self) -> bool:
        """Whether a rank does not go on; it heeds no signal, and neither do those that wait for it."""
        return self._hung is not None

    @property
    def terminated(self) -> bool:
        """Whether SIGTERM ended a rank before it could heed it, or say a word: all are asked to stop then."""
        first = self.first_failed
        return first is not None and first not in self._final and self._codes.get(first) == -signal.SIGTERM

    @property
    def done(self) -> bool:
        """Whether every rank has told its outcome, so that it only has to end."""
        return all("outcome" in self._final.get(rank, {}) for rank in self.ranks)

    @property
    def stopped(self) -> bool:
        """Whether a rank has stopped as it was asked to. One that has told so may have been killed then: it took long to end."""
        told = any(event.get("exit_code") == Stopped.exit_code for event in self._final.values())
        return told or Stopped.exit_code in self._codes.values()

    def take(self, events: Iterable[Told]) -> None:
        """Note who failed first, and who was killed first.

        A rank that aborts after another one failed was not killed: libraries abort when a peer is gone.
        """
        told, ours = list(events), set()
        for rank, event in told:
            if rank is None and "note" in event:
                self.build.report.progress(*self._progress, {"warning": event["note"]})
            elif rank is None and "waiting" in event:
                self.build.report.progress(*self._progress, {"note": event["waiting"]})
            elif rank is None:
                self.fault = self.fault or BY_EXIT_CODE.get(event["exit_code"], Lost)(event["fault"])
            elif "ended" in event:
                self._codes[rank] = event["ended"]
                ours |= {rank} if event["ours"] else set()
                self._short |= {rank} if event.get("short") else set()
                self._step = max(self._step, event.get("step", 0))
            elif "hung" in event:
                self._step = max(self._step, event["step"])
                if not self.failed:
                    self._hung = self._hung or (rank, event["hung"])
            elif "grace" in event:
                self._take_time(float(event["grace"]))
            else:
                self._hear(rank, event)
        failed = [
            rank for rank in dict.fromkeys(r for r, _ in told) if rank is not None and rank not in ours and self._failure(rank)
        ]
        failed.sort(key=lambda rank: (self._codes.get(rank) == -signal.SIGABRT, rank))
        if failed and self.first_failed is None:
            self.first_failed = failed[0]
        for rank in failed:
            code = self._codes.get(rank, 0)
            silent = rank not in self._final  # else it died while it ended
            if (
                code < 0
                and code != -signal.SIGTERM
                and silent
                and self._killed is None
                and (code != -signal.SIGABRT or rank == self.first_failed)
            ):
                self._killed = rank

    def _hear(self, rank: int, event: Event) -> None:
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
            report.records(values)

    def _take_time(self, seconds: float) -> None:
        """A rank has told how long it would take to stop."""
        if self.build.execution.grace_seconds is None and seconds > self.grace:
            self.grace = seconds
            self.build.report.grace(seconds)
            mailbox.put(self.build.file(LOGS, GRACE), {"seconds": seconds})  # for who cancels it

    def _failure(self, rank: int) -> int:
        """The exit code of a rank that has failed: its process's, or the one it told, for it may hang after that. 0: none."""
        return self._codes.get(rank) or int(self._final.get(rank, {}).get("exit_code", 0))

    def outcome(self) -> Outcome:
        """What came of it, once all ranks have ended.

        Raises:
            Lost: a rank was killed, or a host is gone.
            Stopped: the ranks were asked to stop, and have.
            ClozeError: a rank failed; of several errors the one that says most. It knows the step.
        """
        try:
            return self._come_to()
        except ClozeError as error:
            error.step = self._step or None
            raise

    def _come_to(self) -> Outcome:
        if self._hung is not None:
            raise self._hangs(*self._hung)
        if self._killed is not None:
            raise self._death(self._killed)
        if self.terminated:
            raise Stopped(self.stopped_sentence(f"{self.stage} was stopped (SIGTERM); run again to go on"))
        # A rank that has told its outcome is done, even where we ended it because a busy machine took long to let it go.
        done = {rank for rank, event in self._final.items() if "outcome" in event}
        codes = {rank: 0 if rank in done else self._codes.get(rank, -signal.SIGKILL) for rank in self.ranks}
        if self.fault is not None:
            raise self.fault
        if any(codes.values()):
            self._raise(codes)
        event = self._final.get(self.ranks[0], {})
        if "outcome" not in event:
            raise ClozeError(f"{self.stage} ended without a result; its output is in {self.logs / f'rank{self.ranks[0]}.log'}")
        self.build.counters.update(event["counters"])
        return Outcome(**event["outcome"])

    def _raise(self, codes: dict[int, int]) -> None:
        errors = [(rank, event) for rank, event in sorted(self._final.items()) if "error" in event]
        # what a library raised on the first one that failed: on the others, that a peer is gone
        errors.sort(key=lambda error: (error[1]["exit_code"] not in BY_EXIT_CODE, error[0] != self.first_failed))
        if Stopped.exit_code in codes.values() and all(event["exit_code"] == Stopped.exit_code for _, event in errors):
            raise Stopped(self.stopped_sentence())
        if errors:
            rank, event = errors[0]
            where = f"rank {rank} on host {host}; " if (host := self.started.host(rank)) else ""
            hint = "" if event["exit_code"] in BY_EXIT_CODE else f" ({where}log: {self.logs})"
            raise BY_EXIT_CODE.get(event["exit_code"], Lost)(event["error"] + hint)
        rank = self.first_failed if self.first_failed is not None else next(r for r, code in codes.items() if code)
        raise self._death(rank)

    def _who(self, rank: int) -> str:
        host = self.started.host(rank)
        several = len(self.ranks) > 1 or self.build.execution.nodes > 1
        return (f"{self.stage} rank {rank}" if several else self.stage) + (f" on host {host}" if host else "")

    def _death(self, rank: int) -> Lost:
        """How a rank ended that left no word."""
        code = self._codes.get(rank, -signal.SIGKILL)
        error = Lost(f"{self._who(rank)} {ending(code, rank in self._short)}; its output is in {self.logs / f'rank{rank}.log'}")
        error.died = code < 0
        return error

    def _hangs(self, rank: int, sentence: str) -> Lost:
        stacks = f"the stacks of all ranks are in {self.logs}/rank*.log"
        if len(self.ranks) == 1:
            stacks = f"its stacks are in {self.logs / f'rank{rank}.log'}"
        error = Lost(f"{self._who(rank)} {sentence}; {stacks}; run again to go on from the last checkpoint")
        error.died = True
        return error

    def stopped_sentence(self, otherwise: str | None = None) -> str:
        told = [event["error"] for event in self._final.values() if event.get("exit_code") == Stopped.exit_code]
        return str(told[0]) if told else otherwise or f"{self.stage} was stopped and saved a checkpoint; run again to go on"
