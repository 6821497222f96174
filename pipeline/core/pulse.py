"""A rank's pulse: which step it is at, what it does there and since when, in memory that whoever started it can see.

The rank writes a few numbers at each change of what it does; nobody is asked and nothing is sent. So a rank that was stopped, or hangs
in a library that holds the interpreter's lock, can be told from one that waits for it. Both are on one machine, whose monotonic clock is
one for all processes.
"""

from __future__ import annotations

import contextlib
import enum
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

PULSE_FD = "CLOZE_PULSE_FD"
PULSE_FILES = "CLOZE_PULSE_FILES"  # where nobody can pass a descriptor on: a file for each rank of this machine, by LOCAL_RANK
_LAYOUT = struct.Struct("<qqddqq")
_MEMORY = hasattr(os, "memfd_create")  # Linux


class Phase(enum.IntEnum):
    """What a rank does."""

    STARTING = 0
    DATA = 1  # waits for its batch
    COMPUTING = 2
    EXCHANGE = 3  # waits for the other ranks
    LOGGING = 4
    ASIDE = 5  # measures or saves

    @property
    def words(self) -> str:
        """What it does, for a sentence: "it is …"."""
        return {
            Phase.STARTING: "starting",
            Phase.DATA: "waiting for its batch",
            Phase.COMPUTING: "computing",
            Phase.EXCHANGE: "waiting for the other ranks",
            Phase.LOGGING: "writing its log line",
            Phase.ASIDE: "measuring or saving",
        }[self]


@dataclass(frozen=True, slots=True)
class Beat:
    """One look at a rank.

    Attributes:
        step: that it is at, from 1; 0: none yet.
        since: when the phase began, on the monotonic clock, in seconds.
        limit: seconds after which the phase has taken too long; 0: it may take as long as it likes.
        process: its id; 0: it has not begun.
        rank: its number among all machines'.
    """

    step: int = 0
    phase: Phase = Phase.STARTING
    since: float = 0.0
    limit: float = 0.0
    process: int = 0
    rank: int = 0


class Pulse:
    """A rank's end: it says what it does. Where nobody looks, it only counts the time that the rank waits for others."""

    def __init__(self, number: int | None = None) -> None:
        """Args: number: of the file that is looked at; None: nobody looks."""
        self._memory = None if number is None else mmap.mmap(number, _LAYOUT.size)
        self._step, self._phase, self._limit, self._since = 0, Phase.STARTING, 0.0, time.monotonic()
        self._aside, self._aside_since = 0, 0.0
        self.waited = 0.0  # seconds in EXCHANGE, but for those aside
        self.aside = 0.0  # seconds in ASIDE
        self._process, self._rank = os.getpid(), int(os.environ.get("RANK", "0"))
        self._beat()

    @classmethod
    def ours(cls) -> Pulse:
        """That of this process, by its environment."""
        number, files = os.environ.get(PULSE_FD), os.environ.get(PULSE_FILES)
        if number is None and files:
            with contextlib.suppress(OSError), open(files.split(":")[int(os.environ["LOCAL_RANK"])], "r+b") as stream:
                return cls(stream.fileno())
        return cls(None if number is None else int(number))

    def _beat(self) -> None:
        if self._memory is not None:
            limit = 0.0 if self._aside else self._limit
            _LAYOUT.pack_into(self._memory, 0, self._step, self._phase, self._since, limit, self._process, self._rank)

    def enter(self, phase: Phase) -> None:
        """From now on it does this."""
        now = time.monotonic()
        if self._phase is Phase.EXCHANGE and not self._aside:
            self.waited += now - self._since
        self._phase, self._since = phase, now
        self._beat()

    @contextlib.contextmanager
    def within(self, phase: Phase) -> Iterator[None]:
        """In the block it does this, then again what it did before. What is `ASIDE` may take as long as it likes, with all that is
        in it.
        """
        before = self._phase
        self.enter(phase)
        if phase is Phase.ASIDE:
            self._aside += 1
            self._aside_since = self._since
            self._beat()
        try:
            yield
        finally:
            self.enter(before)
            if phase is Phase.ASIDE:
                self._aside -= 1
                self.aside += self._since - self._aside_since
                self._beat()

    def step(self, number: int, limit: float) -> None:
        """It is at step `number` (from 1), no phase of which should take longer than `limit` seconds (0: any time)."""
        self._step, self._limit = number, limit
        self._beat()


class Watched:
    """The other end: who starts a rank passes it `number`, and looks."""

    def __init__(self) -> None:
        # in memory: a file's page that finds a full disk would end the rank with SIGBUS
        self._file: IO[bytes] = open(os.memfd_create("pulse"), "r+b") if _MEMORY else tempfile.TemporaryFile()  # noqa: SIM115
        self._file.truncate(_LAYOUT.size)
        self.number = self._file.fileno()
        self._memory = mmap.mmap(self.number, _LAYOUT.size)

    def look(self) -> Beat:
        """May catch the rank in the middle of a change: what is to count must be seen twice."""
        step, phase, *rest = _LAYOUT.unpack_from(self._memory, 0)
        return Beat(step, Phase(phase) if phase in Phase._value2member_map_ else Phase.STARTING, *rest)

    @property
    def path(self) -> str:
        """Under which a process of the same user opens it while this one lives."""
        return f"/proc/{os.getpid()}/fd/{self.number}"

    def close(self) -> None:
        self._memory.close()
        self._file.close()
