"""The clock of a training: shares of wall time by section, tokens per second, and MFU.

The sections, whose shares sum to one:

  data            waiting for the next batch
  forward         forward passes
  backward        backward passes, with DeepSpeed's communication in them
  communication   waiting for other ranks, if not overlapped with computation
  optimizer       clipping and update, with DeepSpeed's communication in it
  save            waiting for a checkpoint
  evaluation      evaluation during training
  other           the rest: log lines, and other work of the host

On a CPU the host's clock measures them. A GPU runs behind its host, so CUDA events measure its
sections; they are read after they have passed, without waiting. The host's sections (data,
communication) count only while the GPU is idle.

Model FLOPs utilisation (MFU) counts operations for real tokens only: neither padding nor recomputed
layers (`cloze.model.train.plan.estimates`). GPUs' peaks are from `cloze.model.hardware`; a CPU has
no MFU.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from cloze.model import hardware
from cloze.model.data.batch import TokenCounts
from cloze.model.train.precision import Precision

Part = Literal["data", "forward", "backward", "communication", "optimizer", "save", "evaluation"]
PARTS: tuple[Part, ...] = get_args(Part)
EVALUATING_OR_SAVING: tuple[Part, ...] = (
    "save",
    "evaluation",
)  # include all sections nested in them
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
        if self._open and self._open[-1] in EVALUATING_OR_SAVING:
            name = self._open[-1]
        marked = on_device and self._events and name not in EVALUATING_OR_SAVING
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
                # The device goes on with the outer section; waiting on the host is none of its
                # work.
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
        # A section ends at the next mark. `query` does not wait, and `elapsed_time` needs both
        # passed.
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
            name: self._device[name] + (self._host[name] if name in EVALUATING_OR_SAVING else 0.0)
            for name in PARTS
        }
        idle = max(0.0, wall - sum(computed.values()))
        for name in HIDDEN:
            # The host's waiting cost time only while the device had nothing to do.
            exposed = min(idle, self._host[name])
            computed[name] += exposed
            idle -= exposed
        return {**computed, "wall": wall}

    def line(self) -> dict[str, float]:
        """Return each section's share since the last call, as `time_data` etc.; the sum is 1."""
        totals = self.seconds()
        elapsed = {name: max(0.0, totals[name] - self._before[name]) for name in PARTS}
        # A GPU may have caught up on earlier work.
        wall = max(totals["wall"] - self._before["wall"], sum(elapsed.values()), 1e-9)
        self._before = dict(totals)
        shares = {f"time_{name}": round(seconds / wall, 4) for name, seconds in elapsed.items()}
        return {**shares, f"time_{OTHER}": round(max(0.0, 1.0 - sum(shares.values())), 4)}


@dataclass(frozen=True, slots=True)
class MfuMeter:
    """MFU of a training on GPUs.

    Attributes:
        flops_per_token: mean attended tokens -> model FLOPs per token of a step.
        peak: peak operations per second of all ranks' GPUs.
    """

    flops_per_token: Callable[[float], float]
    peak: float

    def mfu(self, tokens_per_second: float, seen: float) -> float:
        """Return the share of the peak.

        Args:
            tokens_per_second: real tokens of all ranks.
            seen: mean number of tokens that a token attends to, itself included.
        """
        return tokens_per_second * self.flops_per_token(seen) / self.peak


def mfu_meter(
    flops_per_token: Callable[[float], float],
    precision: Precision,
    device: torch.device,
    ranks: int,
    notes: list[str],
) -> MfuMeter | None:
    """Return the MFU meter of a training on `ranks` GPUs like this one; None: on a CPU.

    Args:
        flops_per_token: see `MfuMeter`.
        notes: receives a message if the GPU's peak is unknown, which gives None, too.
    """
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    gpu = hardware.recognised(name)
    peak = None if gpu is None else gpu.fp32 if precision == "fp32" else gpu.bf16
    if peak is None:
        notes.append(
            f"MFU is not reported: the peak of {name} in {precision} is not in the table of GPUs "
            f"(model/hardware.py)"
        )
        return None
    return MfuMeter(flops_per_token, peak * ranks)


class Throughput:
    """Token throughput of one session, over the time of its steps without evaluations and saves.

    The session's figures exclude the first step, which allocates and compiles.
    """

    def __init__(self, timeline: TimeBreakdown, meter: MfuMeter | None) -> None:
        """Start a session. Args: meter: None: no MFU."""
        self._timeline, self._meter = timeline, meter
        self._line = self._session = _Interval(timeline.seconds())
        self._steps = 0
        self._last = timeline.seconds()  # end of the newest step

    def begin(self) -> None:
        """Mark the start of the first step."""
        self._line = _Interval(self._timeline.seconds())

    def step(self, tokens: int, own: TokenCounts) -> None:
        """Count a finished step. Args: tokens: real tokens of all ranks; own: this rank's."""
        self._steps, self._last = self._steps + 1, self._timeline.seconds()
        if self._steps == 1:
            self._session = _Interval(self._last)
        else:
            self._session.add(tokens, own)
        self._line.add(tokens, own)

    def line(self) -> dict[str, float]:
        """Return tokens per second, share of waiting for data, and MFU since the last call.

        Padding and lengths are this rank's.
        """
        seconds, interval = self._timeline.seconds(), self._line
        self._line = _Interval(seconds)
        speed, wait_share = interval.speed(seconds)
        metrics = {"tokens_per_second": round(speed, 1), "data_wait": round(wait_share, 4)}
        if interval.own.tokens:
            padded_speed = speed * interval.own.positions / interval.own.tokens
            metrics["padded_tokens_per_second"] = round(padded_speed, 1)
        mfu = self._mfu(speed, interval.own)
        return metrics if mfu is None else {**metrics, "mfu": mfu}

    def session(self) -> dict[str, float | None]:
        """Return the figures of the whole session; the speed is None after a single step."""
        seconds, interval = self._timeline.seconds(), self._session
        speed, wait_share = interval.speed(self._last) if self._steps > 1 else (None, None)
        wall = max(seconds["wall"], 1e-9)
        return {
            "tokens_per_second": None if speed is None else round(speed, 1),
            "data_wait": None if wait_share is None else round(wait_share, 4),
            "mfu": None if speed is None else self._mfu(speed, interval.own),
            "evaluation_share": round(seconds["evaluation"] / wall, 4),
            "checkpoint_share": round(seconds["save"] / wall, 4),
        }

    def _mfu(self, speed: float, own: TokenCounts) -> float | None:
        if self._meter is None or not own.tokens:
            return None
        return float(f"{self._meter.mfu(speed, own.attended / own.tokens):.3g}")


class _Interval:
    """Tokens since a point in time."""

    def __init__(self, since: dict[str, float]) -> None:
        self._since, self._tokens, self.own = dict(since), 0, TokenCounts()

    def add(self, tokens: int, own: TokenCounts) -> None:
        self._tokens, self.own = self._tokens + tokens, self.own + own

    def speed(self, now: dict[str, float]) -> tuple[float, float]:
        """Return tokens per second of step time, and the share of it spent waiting for data."""
        elapsed = {name: seconds - self._since[name] for name, seconds in now.items()}
        seconds = max(elapsed["wall"] - sum(elapsed[name] for name in EVALUATING_OR_SAVING), 1e-9)
        return self._tokens / seconds, min(1.0, max(0.0, elapsed["data"] / seconds))
