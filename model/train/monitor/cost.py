"""The cost of a training over all its sessions: model FLOPs, words and device-hours.

A phase that continues another training counts its own steps alone, so the costs of artifacts add
up. cost.jsonl has a line with the totals for each checkpoint, and a resume continues from that of
its step. Steps that a rollback repeats count twice. What a killed session did after its last
checkpoint is unknown and not counted.

A number that any session does not know is missing in the total.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from cloze.model.data.batch import TokenCounts

if TYPE_CHECKING:
    from cloze.model.train.distributed import World

Totals = dict[str, float | None]
UNKNOWN = math.nan


class CostMeter:
    """The cost of a training, seen by one rank; rank 0's totals count.

    Args:
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

    def add(self, tokens: int, by_source: Sequence[int], own: TokenCounts) -> None:
        """Count a step.

        Args:
            by_source: of a mixture: the same for each dataset; else empty.
            own: this rank's tokens.
        """
        counts = by_source or [tokens]
        self._tokens = [sum(pair) for pair in zip(self._tokens, counts, strict=True)]
        self._own += own

    def totals(self) -> Totals:
        """Return the totals of all sessions, None if unknown."""
        device_seconds = self._world.size * (time.monotonic() - self._began)
        on_gpu = self._world.device.type == "cuda"
        attended = self._own.attended / max(1, self._own.tokens)
        words = zip(self._tokens, self._words_per_token, strict=True)
        session = {
            "flops": sum(self._tokens) * self._flops_per_token(attended),
            "words": sum(count * share for count, share in words),
            "gpu_seconds": device_seconds if on_gpu else 0.0,
            "cpu_seconds": 0.0 if on_gpu else device_seconds * torch.get_num_threads(),
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
        `cpu_hours` of cores: ranks x threads x hours, with evaluations and checkpoints.
    """
    known = {name: value for name, value in totals.items() if value is not None}
    metrics = {
        "training_flops": known.get("flops"),
        "words_seen": known.get("words"),
        "gpu_hours": known.get("gpu_seconds", 0.0) / 3600 or None,
        "cpu_hours": known.get("cpu_seconds", 0.0) / 3600 or None,
    }
    return {name: float(f"{value:.4g}") for name, value in metrics.items() if value is not None}
