"""The figures of a run: sums since the last logged step, and the two files that they go to.

    metrics.jsonl   one JSON object a logged step
    skipped.jsonl   one a step that was skipped for a gradient that is not finite, with the rows it was made of

On resume both are cut back to the step that training goes on from, so no step is missing or there twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.train.distributed import World
from pipeline.core import storage

METRICS, SKIPPED = "metrics.jsonl", "skipped.jsonl"


class Lines:
    """A file of JSON lines, each with the `step` it tells of. Only the first rank writes."""

    def __init__(self, path: str, world: World) -> None:
        self.path, self._writes = Path(path), world.first

    def cut(self, step: int) -> int:
        """Drop every line after `step`, and damaged ones. Returns how many went."""
        if not self._writes or not self.path.exists():
            return 0
        before = self.path.read_text(encoding="utf-8", errors="replace")
        lines = before.splitlines()
        kept = [line for line in lines if _step(line) <= step]
        after = "".join(f"{line}\n" for line in kept)  # the last one may lack its end
        if after != before:
            storage.write_bytes(str(self.path), after.encode())
        return len(lines) - len(kept)

    def add(self, line: Mapping[str, Any]) -> None:
        if self._writes:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All lines but damaged ones."""
        lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines() if self.path.exists() else []
        return [json.loads(line) for line in lines if _step(line) < float("inf")]

    def last(self) -> dict[str, Any]:
        """The newest line; empty where there is none."""
        return next(iter(self.read()[-1:]), {})

    def sync(self) -> None:
        """Have the lines on disk before a checkpoint says that they were written."""
        if self._writes and self.path.exists():
            with self.path.open("ab") as stream:
                os.fsync(stream.fileno())


def _step(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


@dataclass(slots=True)
class Window:
    """Means since the last logged step.

    Every rank adds its own share of each applied step's figures; the sums over ranks are the step's own. They stay
    on the device until they are asked for, so that logging does not stop the device at every step.

    Attributes:
        names: the objectives.
        steps: applied steps.
        sums: float64 [2, objectives]: losses (each step's, in nats) and right answers as a share of each step's.
    """

    names: Sequence[str]
    device: torch.device
    steps: int = 0
    norm: float = 0.0
    sums: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.sums = torch.zeros(2, len(self.names), dtype=torch.float64, device=self.device)

    def add(self, figures: Tensor, counts: Tensor, norm: float) -> None:
        """Args: figures: this rank's sums of the step, see `Scoring`; counts: the step's, over all ranks."""
        self.sums += figures / counts.double()
        self.steps += 1
        self.norm += norm

    def means(self, world: World) -> dict[str, float]:
        """The means, over all ranks; empty where no step was applied. Every rank must call it."""
        sums = world.total_of(self.sums.cpu().clone())
        if not self.steps:
            return {}
        losses, right = (sums / self.steps).tolist()
        found = {"loss": sum(losses)}
        for name, loss, share in zip(self.names, losses, right, strict=True):
            found |= {f"{name}_loss": loss, f"{name}_accuracy": share}
        return {name: round(value, 6) for name, value in (found | {"grad_norm": self.norm / self.steps}).items()}

    def state(self, world: World) -> dict[str, Any]:
        """What a checkpoint keeps of an unfinished window. Every rank must call it."""
        sums = world.total_of(self.sums.cpu().clone())
        return {"steps": self.steps, "norm": self.norm, "sums": sums.tolist()}

    def restore(self, state: Mapping[str, Any], world: World) -> None:
        self.steps, self.norm = state["steps"], state["norm"]
        if world.first:  # the sums over all ranks: one of them carries on with them
            self.sums += torch.tensor(state["sums"], dtype=torch.float64, device=self.device)
