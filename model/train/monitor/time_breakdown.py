"""Time breakdown of a training: shares of wall time by section, which sum to one.

  data            waiting for the next batch
  forward         forward passes
  backward        backward passes, with DeepSpeed's communication in them
  communication   waiting for other ranks, if not overlapped with computation
  optimizer       clipping and update, with DeepSpeed's communication in it
  save            waiting for a checkpoint
  evaluation      evaluation during training
  other           the rest: log lines, and other work of the host

On a CPU the clock measures them. A GPU runs behind its host, so CUDA events measure its sections;
they are read after they have passed, without waiting. The host's sections (data, communication)
count only while the GPU is idle.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Part = Literal["data", "forward", "backward", "communication", "optimizer", "save", "evaluation"]
PARTS: tuple[Part, ...] = (
    "data",
    "forward",
    "backward",
    "communication",
    "optimizer",
    "save",
    "evaluation",
)
ASIDE: tuple[Part, ...] = ("save", "evaluation")  # include all sections nested in them
# Sections of the host that a GPU's computation can hide.
HIDDEN: tuple[Part, ...] = ("data", "communication")
OTHER = "other"


class TimeBreakdown:
    """The time breakdown of one rank.

    Sections may be nested; inner time is not counted in the outer one.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        """Start the clock. Args: device: compute device; None: the CPU."""
        self._events = device is not None and device.type == "cuda"
        self._spare: list[torch.cuda.Event] = []
        self.begin()

    def begin(self) -> None:
        """Reset all times."""
        self._open: list[Part] = []
        self._since = 0.0  # when the innermost open section started or continued
        self._host: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._device: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        # Events with the section that the device enters at each.
        self._marks: deque[tuple[torch.cuda.Event, Part | None]] = deque()
        # The sums at the last line.
        self._before: dict[str, float] = dict.fromkeys((*PARTS, "wall"), 0.0)
        self._began = time.perf_counter()

    @contextmanager
    def section(self, name: Part, *, on_device: bool = False) -> Iterator[None]:
        """Count the block as this section.

        Args:
            on_device: True if a GPU does the work: events then measure it instead of the host's
                clock.
        """
        if self._open and self._open[-1] in ASIDE:
            name = self._open[-1]
        marked = on_device and self._events and name not in ASIDE
        self._count()
        self._open.append(name)
        if marked:
            self._mark(name)
        try:
            yield
        finally:
            self._count()
            self._open.pop()
            if marked:
                self._mark(self._open[-1] if self._open and self._open[-1] not in HIDDEN else None)

    def _count(self) -> None:
        """Add the time since the last change to the innermost section."""
        now = time.perf_counter()
        if self._open:
            self._host[self._open[-1]] += now - self._since
        self._since = now

    def _mark(self, name: Part | None) -> None:
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._marks.append((event, name))
        self._drain()

    def _drain(self) -> None:
        """Add up the sections that the device has passed."""
        while len(self._marks) > 1 and self._marks[1][0].query():  # type: ignore[no-untyped-call]
            event, name = self._marks.popleft()
            if name is not None:
                self._device[name] += event.elapsed_time(self._marks[0][0]) / 1e3
            self._spare.append(event)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each section since the start, and `wall`."""
        self._count()
        wall = time.perf_counter() - self._began
        if not self._events:
            return {**self._host, "wall": wall}
        self._drain()
        computed: dict[str, float] = {
            name: self._device[name] + (self._host[name] if name in ASIDE else 0.0)
            for name in PARTS
        }
        idle = max(0.0, wall - sum(computed.values()))
        for name in HIDDEN:
            taken = min(idle, self._host[name])
            computed[name] += taken
            idle -= taken
        return {**computed, "wall": wall}

    def line(self) -> dict[str, float]:
        """Return each section's share since the last call, as `time_data` etc.; the sum is 1."""
        now = self.seconds()
        found = {name: max(0.0, now[name] - self._before[name]) for name in PARTS}
        # A GPU may have caught up on earlier work.
        wall = max(now["wall"] - self._before["wall"], sum(found.values()), 1e-9)
        self._before = dict(now)
        shares = {f"time_{name}": round(seconds / wall, 4) for name, seconds in found.items()}
        return {**shares, f"time_{OTHER}": round(max(0.0, 1.0 - sum(shares.values())), 4)}
