"""Where a training's time goes, part by part: shares of the wall clock that add up to one.

    data            waiting for the next batch
    forward         forward passes
    backward        backward passes, and what DeepSpeed exchanges in them
    communication   waiting for other ranks' gradients and messages, where nothing is computed beside
    optimizer       clipping and the update, and what DeepSpeed exchanges in it
    save            standing still for a checkpoint
    evaluation      measuring on the way
    other           all the rest: log lines, and the host's own work

On a CPU they are read off the clock. A GPU runs behind its host, so there the parts that it computes are told by events, which are read
when they have passed: nobody ever waits for them. What the host does meanwhile (batches, messages) counts only as far as the GPU had nothing
to do.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Part = Literal["data", "forward", "backward", "communication", "optimizer", "save", "evaluation"]
PARTS: tuple[Part, ...] = ("data", "forward", "backward", "communication", "optimizer", "save", "evaluation")
ASIDE: tuple[Part, ...] = ("save", "evaluation")  # all that is done in them is theirs
HIDDEN: tuple[Part, ...] = ("data", "communication")  # that a host does while its GPU computes
OTHER = "other"
SOON = 60.0  # seconds before which a share of the time says little


class Timeline:
    """One rank's. Parts may lie in each other: the inner one's time is no part of the outer one's."""

    def __init__(self, device: torch.device | None = None) -> None:
        """Args: device: what computes; None: the CPU."""
        self._events = device is not None and device.type == "cuda"
        self._spare: list[torch.cuda.Event] = []
        self.begin()

    def begin(self) -> None:
        """Forget what was: the time counts from now."""
        self._open: list[Part] = []
        self._since = 0.0  # when the innermost open part began, or went on
        self._host: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._device: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._marks: deque[tuple[torch.cuda.Event, Part | None]] = deque()  # from each one on the device is at that part
        self._before: dict[str, float] = dict.fromkeys((*PARTS, "wall"), 0.0)  # the sums at the last line
        self._began = time.perf_counter()

    @contextmanager
    def part(self, name: Part, *, on_device: bool = False) -> Iterator[None]:
        """The block is this part.

        Args:
            on_device: whether its work is the device's, where that is no CPU: then its events count and not the host's clock.
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
        """Give the time since the last change to the innermost part."""
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
        """Add up what the device has passed."""
        while len(self._marks) > 1 and self._marks[1][0].query():  # type: ignore[no-untyped-call]
            event, name = self._marks.popleft()
            if name is not None:
                self._device[name] += event.elapsed_time(self._marks[0][0]) / 1e3
            self._spare.append(event)

    def seconds(self) -> dict[str, float]:
        """Seconds of each part since the beginning, and `wall`."""
        self._count()
        wall = time.perf_counter() - self._began
        if not self._events:
            return {**self._host, "wall": wall}
        self._drain()
        computed: dict[str, float] = {name: self._device[name] + (self._host[name] if name in ASIDE else 0.0) for name in PARTS}
        idle = max(0.0, wall - sum(computed.values()))
        for name in HIDDEN:
            taken = min(idle, self._host[name])
            computed[name] += taken
            idle -= taken
        return {**computed, "wall": wall}

    def line(self) -> dict[str, float]:
        """The share of each part since the last call, as `time_data` and so on; together one."""
        now = self.seconds()
        found = {name: max(0.0, now[name] - self._before[name]) for name in PARTS}
        wall = max(
            now["wall"] - self._before["wall"], sum(found.values()), 1e-9
        )  # what a GPU was behind with may have come now
        self._before = dict(now)
        shares = {f"time_{name}": round(seconds / wall, 4) for name, seconds in found.items()}
        return {**shares, f"time_{OTHER}": round(max(0.0, 1.0 - sum(shares.values())), 4)}

    def evaluations(self) -> dict[str, float]:
        """The share of all the time so far that went to evaluations, as `evaluation_share`; nothing in the first minute."""
        now = self.seconds()
        return {"evaluation_share": round(now["evaluation"] / now["wall"], 4)} if now["wall"] > SOON else {}
