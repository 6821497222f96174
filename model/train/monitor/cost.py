"""The cost of a training over all its sessions: model FLOPs, words, device-hours and energy.

A phase that continues another training counts its own steps alone, so the costs of artifacts add
up. cost.jsonl has a line with the totals for each checkpoint, and a resume continues from that of
its step. Steps that a rollback repeats count twice. What a killed session did after its last
checkpoint is unknown and not counted.

Energy comes from hardware counters and is never estimated: on GPUs from NVML, which needs
nvidia-ml-py; on CPUs from RAPL, for all packages of a host and everything that runs on them. A
number that any rank or session does not know is missing in the total.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cloze.model.data.batch import TokenCounts

if TYPE_CHECKING:
    from cloze.model.train.distributed import World

Totals = dict[str, float | None]
UNKNOWN = math.nan
POWERCAP = Path("/sys/class/powercap")
POLL_SECONDS = 5.0
# Upper bound of a CPU package's power: tells whether a counter may have wrapped around twice.
MOST_WATTS = 1000.0
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class EnergyCounter:
    """A hardware counter in joules. Attributes: wrap: value at which it starts again from 0."""

    read: Callable[[], float]
    wrap: float = math.inf


def gpu_counters(device: torch.device) -> list[EnergyCounter] | None:
    """Return the energy counter of a GPU; None: NVML is missing, or the GPU has no counter."""
    try:
        import pynvml  # type: ignore[import-not-found, unused-ignore]

        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        handle: Any = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        counter = EnergyCounter(lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)
        counter.read()
    except Exception:  # the library's own errors cannot be named without the library
        return None
    return [counter]


def cpu_counters(powercap: Path = POWERCAP) -> list[EnergyCounter] | None:
    """Return the energy counters of this host's CPU packages; None: not readable.

    Since 2020 Linux lets only root read them.
    """

    def counter(zone: Path) -> EnergyCounter:
        wrap = int((zone / "max_energy_range_uj").read_text()) / 1e6
        energy = zone / "energy_uj"
        return EnergyCounter(lambda: int(energy.read_text()) / 1e6, wrap)

    try:
        zones = [
            zone
            for zone in sorted(powercap.glob("intel-rapl:*"))  # AMD's have this name, too
            if (zone / "name").read_text().startswith("package")
        ]
        counters = [counter(zone) for zone in zones]
        for each in counters:
            each.read()
    except (OSError, ValueError):
        return None
    return counters or None


class EnergyMeter:
    """Joules of counters since the start; poll it often enough for counters that wrap around."""

    def __init__(self, counters: Sequence[EnergyCounter] | None) -> None:
        """Start to measure. Args: counters: None: unknown; empty: another rank measures them."""
        self._counters = [] if counters is None else list(counters)
        self._joules = UNKNOWN if counters is None else 0.0
        self._readings = [counter.read() for counter in self._counters]
        self._time = time.monotonic()

    def joules(self, at_most_every: float = 0.0) -> float:
        """Return the joules since the start; NaN if unknown.

        Args:
            at_most_every: seconds in which counters are not read again.
        """
        now = time.monotonic()
        if now - self._time < at_most_every:
            return self._joules
        try:
            readings = [counter.read() for counter in self._counters]
        except Exception:  # a driver that fails must not stop the training
            self._counters, self._readings, self._joules = [], [], UNKNOWN
            return UNKNOWN
        for counter, before, after in zip(self._counters, self._readings, readings, strict=True):
            is_certain = (now - self._time) * MOST_WATTS < counter.wrap
            self._joules += (after - before) % counter.wrap if is_certain else UNKNOWN
        self._readings, self._time = readings, now
        return self._joules


class CostMeter:
    """The cost of a training, seen by one rank; rank 0's totals count.

    Args:
        world: the ranks. A host's first rank measures its CPUs, each rank its own GPU.
        flops_per_token: mean attended tokens -> model FLOPs per token of a step.
        words_per_token: words per real token of each dataset; NaN: unknown.
        earlier: totals up to the resumed checkpoint; empty: a new training; None: unknown.
    """

    def __init__(
        self,
        world: World,
        flops_per_token: Callable[[float], float],
        words_per_token: Sequence[float],
        earlier: Mapping[str, float | None] | None,
    ) -> None:
        self._world, self._flops_per_token = world, flops_per_token
        self._words_per_token, self._earlier = words_per_token, earlier
        self._tokens, self._own = [0] * len(words_per_token), TokenCounts()
        self._began = time.monotonic()
        if world.device.type == "cuda":
            counters = gpu_counters(world.device)
        else:
            counters = cpu_counters() if os.environ.get("LOCAL_RANK", "0") == "0" else []
        self._energy = EnergyMeter(counters)

    def add(self, tokens: int, by_source: Sequence[int], own: TokenCounts) -> None:
        """Count a step.

        Args:
            tokens: real tokens of all ranks.
            by_source: of a mixture: the same for each dataset; else empty.
            own: this rank's tokens.
        """
        counts = by_source or [tokens]
        self._tokens = [sum(pair) for pair in zip(self._tokens, counts, strict=True)]
        self._own += own
        self._energy.joules(POLL_SECONDS)

    def totals(self) -> Totals:
        """Return the totals of all sessions, None if unknown; every rank must call it."""
        device_seconds = self._world.size * (time.monotonic() - self._began)
        on_gpu = self._world.device.type == "cuda"
        (joules,) = self._world.all_reduce_sum([self._energy.joules()], torch.float64)
        attended = self._own.attended / max(1, self._own.tokens)
        words = zip(self._tokens, self._words_per_token, strict=True)
        session = {
            "flops": sum(self._tokens) * self._flops_per_token(attended),
            "words": sum(count * share for count, share in words),
            "gpu_seconds": device_seconds if on_gpu else 0.0,
            "cpu_seconds": 0.0 if on_gpu else device_seconds * torch.get_num_threads(),
            "joules": joules,
        }
        totals = {name: value + self._before(name) for name, value in session.items()}
        return {name: None if math.isnan(value) else value for name, value in totals.items()}

    def _before(self, name: str) -> float:
        if not self._earlier:
            return UNKNOWN if self._earlier is None else 0.0
        value = self._earlier[name]
        return UNKNOWN if value is None else value


def cost_metrics(totals: Mapping[str, float | None]) -> dict[str, float]:
    """Return the totals as a stage's summary has them, without unknown ones.

    Returns:
        `training_flops`: model FLOPs, as MFU counts them. `words_seen`: words read. `gpu_hours`, or
        `cpu_hours` of cores: ranks x threads x hours, with evaluations and checkpoints. `kwh`.
    """
    known = {name: value for name, value in totals.items() if value is not None}
    metrics = {
        "training_flops": known.get("flops"),
        "words_seen": known.get("words"),
        "gpu_hours": known.get("gpu_seconds", 0.0) / 3600 or None,
        "cpu_hours": known.get("cpu_seconds", 0.0) / 3600 or None,
        "kwh": known["joules"] / JOULES_PER_KWH if "joules" in known else None,
    }
    return {name: float(f"{value:.4g}") for name, value in metrics.items() if value is not None}
