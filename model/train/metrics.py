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
from pipeline.core.processes import peak_memory

METRICS, SKIPPED = "metrics.jsonl", "skipped.jsonl"
GB = 1e9
# What tells of the machine rather than of the training; beside it, all that begins with `time_`. Nothing else differs between two runs.
OF_THE_MACHINE = frozenset({
    "time", "tokens_per_second", "padded_tokens_per_second", "data_wait", "rank_wait", "mfu", "memory_gb", "gpu_memory_gb",
    "evaluation_share",
})  # fmt: skip


def timeless(line: Mapping[str, Any]) -> dict[str, Any]:
    """A log line without what the machine or the moment has to do with it."""
    return {name: value for name, value in line.items() if name not in OF_THE_MACHINE and not name.startswith("time_")}


def memory(device: torch.device) -> dict[str, float]:
    """The most memory that this process has taken so far: resident, and allocated on its GPU."""
    found = {"memory_gb": round(peak_memory() / GB, 3)}
    if device.type == "cuda":
        found["gpu_memory_gb"] = round(torch.cuda.max_memory_allocated(device) / GB, 3)
    return found


class Lines:
    """A file of JSON lines, each with the `step` it tells of. Only the first rank writes.

    An object store appends to nothing: there the lines are kept here, and put as a whole with each checkpoint.
    """

    def __init__(self, path: str, world: World) -> None:
        self.path, self._writes, self._local = path, world.first, storage.is_local(path)
        self._file = Path(storage.filesystem(path)[1])
        self._kept: list[str] | None = None  # what the store's object is to hold, once it was read
        self._put = 0  # how many of these it holds

    def cut(self, step: int) -> int:
        """Drop every line after `step`, and damaged ones. Returns how many went."""
        if not self._writes:
            return 0
        before = self._text()
        lines = before.splitlines()
        kept = [line for line in lines if _step(line) <= step]
        after = "".join(f"{line}\n" for line in kept)  # the last one may lack its end
        if after != before:
            storage.write_bytes(self.path, after.encode())
        if not self._local:
            self._kept, self._put = after.splitlines(keepends=True), len(kept)
        return len(lines) - len(kept)

    def add(self, line: Mapping[str, Any]) -> None:
        if not self._writes:
            return
        text = json.dumps(line) + "\n"
        if not self._local:
            if self._kept is None:
                self._kept = self._text().splitlines(keepends=True)
            self._kept.append(text)
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as stream:
            stream.write(text)

    def read(self) -> list[dict[str, Any]]:
        """All lines but damaged ones."""
        return [json.loads(line) for line in self._text().splitlines() if _step(line) < float("inf")]

    def last(self) -> dict[str, Any]:
        """The newest line; empty where there is none."""
        return next(iter(self.read()[-1:]), {})

    def sync(self) -> None:
        """Have the lines on disk, or in the store, before a checkpoint says that they were written. Any thread may call it."""
        if not self._writes:
            return
        if self._local:
            if self._file.exists():
                with self._file.open("ab") as stream:
                    os.fsync(stream.fileno())
        elif self._kept is not None and len(self._kept) > self._put:
            lines = list(self._kept)
            storage.write_bytes(self.path, "".join(lines).encode())
            self._put = len(lines)

    def _text(self) -> str:
        if self._kept is not None:
            return "".join(self._kept)
        if not storage.exists(self.path):
            return ""
        with storage.open_input(self.path) as stream:
            return stream.read().decode("utf-8", "replace")


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
