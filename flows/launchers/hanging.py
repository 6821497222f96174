"""Which rank hangs: the one that does not go on, not those that wait for it.

`Hangs.look` sees every rank's pulse (`pipeline.core.pulse`). Where a phase of a step takes longer than its limit, all ranks are asked for
their stacks (SIGUSR1, which they answer in C, whatever their interpreter does), and one is named: a rank that is stopped, or does not
answer; else one that waits for no other; among these, and where all seem to wait, one that is at the earliest step.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.pulse import Beat, Phase, Watched

LOOK_SECONDS = 1.0
ASLEEP_SECONDS = 10.0  # without a look: the whole machine, or this process, was asleep
DUMP_SECONDS = 5.0  # for ranks to write their stacks
ELSEWHERE_SECONDS = 60.0  # that another machine has to tell of its rank, where all of this one wait
WAITING = re.compile(r'File "[^"]*(?:torch/distributed/|deepspeed/comm/)')  # frames that wait for other ranks
DUMPED = "(most recent call first):"
_MAIN = re.compile(r"^(?:Current thread|Thread) 0x\w+.*?\(most recent call first\):\n((?:  File .*\n?)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Hang:
    """Attributes: rank: on this machine; step: that it is at; sentence: what it does, after its name."""

    rank: int
    step: int
    sentence: str


class Hangs:
    """Looks after the ranks of one machine.

    Args:
        pids: their processes, by rank.
        logs: the files that their stacks go to.
        elsewhere: whether there are ranks on other machines.
    """

    def __init__(self, pids: Sequence[int], watched: Sequence[Watched], logs: Sequence[Path], elsewhere: bool) -> None:
        self._pids, self._watched, self._logs, self._elsewhere = pids, watched, logs, elsewhere
        self._looked = self._awake = time.monotonic()
        self._before: list[Beat] = []

    def steps(self) -> list[int]:
        """The step that each rank is at, from 1; 0: none yet."""
        return [watched.look().step for watched in self._watched]

    def look(self) -> Hang | None:
        """Called at least every few seconds; a rank that hangs is told once it was seen so twice."""
        now = time.monotonic()
        if now < self._looked + LOOK_SECONDS:
            return None
        if now > self._looked + ASLEEP_SECONDS:
            self._awake = now
        self._looked = now
        beats = [watched.look() for watched in self._watched]
        late = [beat for beat in beats if beat.limit and now > max(beat.since, self._awake) + beat.limit]
        before, self._before = self._before, beats
        if not late or beats != before:
            return None
        if self._elsewhere and all(beat.phase is Phase.EXCHANGE for beat in beats):
            if any(now < max(beat.since, self._awake) + beat.limit + ELSEWHERE_SECONDS for beat in late):
                return None
            return Hang(
                0, beats[0].step, "and all others of this machine wait for a rank of another machine, which hangs or is gone"
            )
        return self._found(beats, now)

    def _found(self, beats: Sequence[Beat], now: float) -> Hang:
        """Have the ranks tell where they are, and choose."""
        stopped = [rank for rank, pid in enumerate(self._pids) if state(pid) in ("T", "t")]
        stacks = self._stacks([rank for rank in range(len(beats)) if rank not in stopped])
        silent = [rank for rank in range(len(beats)) if rank not in stopped and rank not in stacks]
        if stopped or silent:
            rank = (stopped or silent)[0]
            where = (
                "was stopped (SIGSTOP) and cannot tell where it is"
                if stopped
                else "does not answer: it waits inside the kernel"
            )
        else:
            busy = [
                rank for rank, beat in enumerate(beats) if beat.phase is not Phase.EXCHANGE and not WAITING.search(stacks[rank])
            ]
            rank = min(busy or range(len(beats)), key=lambda rank: beats[rank].step)
            where = "hangs" + _top(stacks[rank])
        beat = beats[rank]
        return Hang(
            rank,
            beat.step,
            f"{where}; it has been {beat.phase.words} in step {beat.step} for {now - beat.since:.0f} s, where a step may take"
            f" {beat.limit:.0f} s",
        )

    def _stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        """The main thread's stack of each of these ranks that answers; all threads' are then in its log."""
        begins = {rank: self._logs[rank].stat().st_size for rank in ranks}
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(self._pids[rank], signal.SIGUSR1)
        found: dict[int, str] = {}
        deadline = time.monotonic() + DUMP_SECONDS
        while len(found) < len(ranks) and time.monotonic() < deadline:
            time.sleep(0.1)
            for rank in ranks:
                with self._logs[rank].open("rb") as stream:
                    stream.seek(begins[rank])
                    stacks = _MAIN.findall(stream.read().decode(errors="replace"))
                if stacks and rank not in found:
                    found[rank] = stacks[-1]  # the main thread comes last
        time.sleep(0.2)  # for what is still being written
        return found


def state(pid: int) -> str:
    """The kernel's letter for what a process does; empty: it is gone, or this is no Linux."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _top(stack: str) -> str:
    """Where that is, as ` in FUNCTION (FILE, line N)`."""
    found = re.search(r'File "([^"]+)", line (\d+) in (\S+)', stack)
    return "" if found is None else f" in {found[3]} ({'/'.join(found[1].split('/')[-2:])}, line {found[2]})"
