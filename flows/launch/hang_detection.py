"""Hang detection: find the rank that makes no progress, not the ranks that wait for it.

`HangDetector.check` reads every rank's heartbeat (`cloze.core.processes`). If a phase exceeds its
limit, and the storage takes a write, ranks that were stopped by SIGSTOP go on. If there are none,
all are asked for their stacks by SIGUSR1, which a C handler answers whatever the interpreter does.
The hanging rank is, in this order: a traced or silent rank; a rank that waits for no other, the one
at the earliest step; the rank at the earliest step.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cloze.core.accounts import open_unlinked
from cloze.core.processes import HeartbeatReader, RankPhase, RankStatus, process_state

POLL_SECONDS = 1.0
ASLEEP_SECONDS = 10.0  # between two checks: the host, or this process, was suspended
STALL_SECONDS = 1800.0  # that storage may stand still, as in a failover; then a rank hangs
DUMP_SECONDS = 5.0  # for ranks to write their stacks
ELSEWHERE_SECONDS = 60.0  # for another host to report its rank, if all ranks here wait
# stack frames that wait for other ranks
WAITING = re.compile(r'File "[^"]*(?:torch/distributed/|deepspeed/comm/)')
_MAIN = re.compile(
    r"^(?:Current thread|Thread) 0x\w+.*?\(most recent call first\):\n((?:  File .*\n?)*)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class HangReport:
    """A hanging rank."""

    rank: int  # index among this host's ranks
    step: int
    sentence: str  # what the rank does, to follow its name
    goes_on: bool = False  # it does again


class HangDetector:
    """Hang detector of one host's ranks.

    `logs`: log files that receive the stacks, by rank; `elsewhere`: other hosts have ranks, too.
    """

    def __init__(
        self,
        pids: Sequence[int],
        watched: Sequence[HeartbeatReader],
        logs: Sequence[Path],
        elsewhere: bool,
    ) -> None:
        self._pids, self._watched, self._logs, self._elsewhere = pids, watched, logs, elsewhere
        self._last_check = self._awake = time.monotonic()
        self._before: list[RankStatus] = []
        self._write: threading.Thread | None = None  # a write that shows whether storage stalls

    def check(self) -> HangReport | None:
        """Return a rank that hangs in two successive checks. Call every few seconds."""
        now = time.monotonic()
        if now < self._last_check + POLL_SECONDS:
            return None
        if now > self._last_check + ASLEEP_SECONDS:
            self._awake = now
        self._last_check = now
        beats = [watched.read() for watched in self._watched]
        overdue = [
            beat for beat in beats if beat.limit and now > max(beat.since, self._awake) + beat.limit
        ]
        previous, self._before = self._before, beats
        if not overdue or beats != previous or self._storage_stalls(now):
            return None
        if stopped := [rank for rank, pid in enumerate(self._pids) if process_state(pid) == "T"]:
            for rank in stopped:
                os.kill(self._pids[rank], signal.SIGCONT)
            self._awake = now
            sentence = (
                "was stopped (SIGSTOP) for longer than a step may take, and goes on (SIGCONT)"
            )
            return HangReport(stopped[0], beats[stopped[0]].step, sentence, goes_on=True)
        if self._elsewhere and all(beat.phase is RankPhase.EXCHANGE for beat in beats):
            limits = (max(beat.since, self._awake) + beat.limit for beat in overdue)
            if now < max(limits) + ELSEWHERE_SECONDS:
                return None
            sentence = (
                "and all others of this machine wait for a rank of another machine, which hangs "
                "or is gone"
            )
            return HangReport(0, beats[0].step, sentence)
        return self._hanging_rank(beats, now)

    def _storage_stalls(self, now: float) -> bool:
        """Return whether the ranks' storage takes no write; what it held up gets its limit anew."""
        if self._write is None:
            self._asked = now
            self._write = threading.Thread(target=self._try_to_write, daemon=True)
            self._write.start()
            self._write.join(POLL_SECONDS)
        if self._write.is_alive():
            return now < self._asked + STALL_SECONDS
        has_stalled, self._write = now > self._asked, None
        self._awake = now if has_stalled else self._awake
        return has_stalled

    def _try_to_write(self) -> None:
        probe = self._logs[0].parent / "storage"
        with suppress(OSError), open(probe, "wb", opener=open_unlinked) as file:
            file.write(b".")  # a full disk does not stall

    def _hanging_rank(self, beats: Sequence[RankStatus], now: float) -> HangReport:
        """Collect the stacks, and choose the rank that hangs."""
        traced = [rank for rank, pid in enumerate(self._pids) if process_state(pid) == "t"]
        stacks = self._stacks([rank for rank in range(len(beats)) if rank not in traced])
        silent = [rank for rank in range(len(beats)) if rank not in traced and rank not in stacks]
        if traced:
            rank, description = traced[0], "is stopped by a debugger and cannot tell where it is"
        elif silent:
            rank, description = silent[0], "does not answer: it waits inside the kernel"
        else:
            busy = [
                rank
                for rank, beat in enumerate(beats)
                if beat.phase is not RankPhase.EXCHANGE and not WAITING.search(stacks[rank])
            ]
            rank = min(busy or range(len(beats)), key=lambda rank: beats[rank].step)
            description = "hangs" + _top(stacks[rank])
        beat = beats[rank]
        return HangReport(
            rank,
            beat.step,
            f"{description}; it has been {beat.phase.description} in step {beat.step} for "
            f"{now - beat.since:.0f} s, which may take {beat.limit:.0f} s",
        )

    def _stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        """Return the main thread's stack of each rank that responds; logs get all threads'."""
        offsets = {rank: self._logs[rank].stat().st_size for rank in ranks}
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(self._pids[rank], signal.SIGUSR1)
        stacks_by_rank: dict[int, str] = {}
        deadline = time.monotonic() + DUMP_SECONDS
        while len(stacks_by_rank) < len(ranks) and time.monotonic() < deadline:
            time.sleep(0.1)
            for rank in ranks:
                with self._logs[rank].open("rb") as stream:
                    stream.seek(offsets[rank])
                    stacks = _MAIN.findall(stream.read().decode(errors="replace"))
                if stacks and rank not in stacks_by_rank:
                    stacks_by_rank[rank] = stacks[-1]  # the main thread comes last
        time.sleep(0.2)  # for stacks that are still being written
        return stacks_by_rank


def _top(stack: str) -> str:
    """Return the top frame of a stack as ` in FUNCTION (FILE, line N)`."""
    match = re.search(r'File "([^"]+)", line (\d+) in (\S+)', stack)
    if match is None:
        return ""
    return f" in {match[3]} ({'/'.join(match[1].split('/')[-2:])}, line {match[2]})"
