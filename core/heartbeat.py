"""A rank's heartbeat: its step, phase and the phase's start, in memory shared with its parent.

The rank writes a few numbers at each change of its phase; nothing is sent. So the parent can tell a
rank that was stopped, or hangs in a library that holds the GIL, from a rank that waits for it. Both
are on one machine and share its monotonic clock.
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
_LAYOUT = struct.Struct("<qqdd")
_MEMORY = hasattr(os, "memfd_create")  # Linux


class RankPhase(enum.IntEnum):
    """The current activity of a rank."""

    STARTING = 0
    DATA = 1  # waits for its batch
    COMPUTING = 2
    EXCHANGE = 3  # waits for the other ranks
    LOGGING = 4
    ASIDE = 5  # evaluates or saves

    @property
    def description(self) -> str:
        """Return the activity as a participle, for a sentence: "it is …"."""
        return {
            RankPhase.STARTING: "starting",
            RankPhase.DATA: "waiting for its batch",
            RankPhase.COMPUTING: "computing",
            RankPhase.EXCHANGE: "waiting for the other ranks",
            RankPhase.LOGGING: "writing its log line",
            RankPhase.ASIDE: "measuring or saving",
        }[self]


@dataclass(frozen=True, slots=True)
class RankStatus:
    """The state of a rank at one moment.

    Attributes:
        step: current step, from 1; 0: none yet.
        since: start of the phase on the monotonic clock, in seconds.
        limit: seconds after which the phase has taken too long; 0: no limit.
    """

    step: int = 0
    phase: RankPhase = RankPhase.STARTING
    since: float = 0.0
    limit: float = 0.0


class HeartbeatWriter:
    """The rank's side of the heartbeat; does nothing if no parent reads it."""

    def __init__(self, number: int | None = None) -> None:
        """Map the shared memory at the file descriptor `number`; None: no parent reads it."""
        self._memory = None if number is None else mmap.mmap(number, _LAYOUT.size)
        self._step, self._phase, self._limit, self._since = (
            0,
            RankPhase.STARTING,
            0.0,
            time.monotonic(),
        )
        self._aside = 0
        self._beat()

    @classmethod
    def from_env(cls) -> HeartbeatWriter:
        """Open the heartbeat at the file descriptor that the environment names."""
        number = os.environ.get(PULSE_FD)
        return cls(None if number is None else int(number))

    def _beat(self) -> None:
        if self._memory is not None:
            limit = 0.0 if self._aside else self._limit
            _LAYOUT.pack_into(self._memory, 0, self._step, self._phase, self._since, limit)

    def set_phase(self, phase: RankPhase) -> None:
        """Start a phase now."""
        self._phase, self._since = phase, time.monotonic()
        self._beat()

    @contextlib.contextmanager
    def phase(self, phase: RankPhase) -> Iterator[None]:
        """Set the phase for the block, then restore the previous one; `ASIDE` has no time limit."""
        before = self._phase
        self.set_phase(phase)
        if phase is RankPhase.ASIDE:
            self._aside += 1
            self._beat()
        try:
            yield
        finally:
            self.set_phase(before)
            if phase is RankPhase.ASIDE:
                self._aside -= 1
                self._beat()

    def begin_step(self, number: int, limit: float) -> None:
        """Start step `number` (from 1); each phase may take `limit` seconds (0: no limit)."""
        self._step, self._limit = number, limit
        self._beat()


class HeartbeatReader:
    """The parent's side: it passes `number` to the rank that it starts, and reads."""

    def __init__(self) -> None:
        # in memory: a page of a file on a full disk would kill the rank with SIGBUS
        if _MEMORY:
            self._file: IO[bytes] = open(os.memfd_create("pulse"), "r+b")  # noqa: SIM115
        else:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._file.truncate(_LAYOUT.size)
        self.number = self._file.fileno()
        self._memory = mmap.mmap(self.number, _LAYOUT.size)

    def read(self) -> RankStatus:
        """Read the status; it may be half-written, so act only on a value that was seen twice."""
        step, phase, *rest = _LAYOUT.unpack_from(self._memory, 0)
        return RankStatus(
            step,
            RankPhase(phase) if phase in RankPhase._value2member_map_ else RankPhase.STARTING,
            *rest,
        )

    def close(self) -> None:
        self._memory.close()
        self._file.close()
