"""What is remembered of a run in MLflow that may go on in a later spool: how far its records have come, and how often it was begun.

    steps/ID    {"step": n, "sample": n, "attempt": n}

So a step that is computed a second time is recorded once, and samples of the system's load go on counting.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.core import storage

DIRECTORY = "steps"  # below the spools'
NONE = -1
SAMPLES = "system"  # the series of a metrics record that is counted by samples; all others by training steps


@dataclass(slots=True)
class Memory:
    """Of one run. `step` and `sample` are the highest recorded, -1: none; `attempt` counts from 1."""

    step: int = NONE
    sample: int = NONE
    attempt: int = 0

    def see(self, record: Mapping[str, Any]) -> None:
        """Take in a record of the run."""
        if record["op"] == "metrics":
            highest = max((step for _, _, step, _ in record["metrics"]), default=NONE)
            if record.get("series") == SAMPLES:
                self.sample = max(self.sample, highest)
            else:
                self.step = max(self.step, highest)


def read(directory: Path, run: str) -> Memory:
    """What spools before have of the run."""
    try:
        return Memory(**json.loads((directory / DIRECTORY / run).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return Memory()


def write(directory: Path, run: str, memory: Memory) -> None:
    """Remember a run that may go on."""
    known = read(directory, run)
    best = Memory(*(max(a, b) for a, b in zip(asdict(known).values(), asdict(memory).values(), strict=True)))
    if best != known:
        storage.write_bytes(str(directory / DIRECTORY / run), json.dumps(asdict(best)).encode())


def forget(directory: Path, run: str) -> None:
    """A run that has finished never goes on."""
    (directory / DIRECTORY / run).unlink(missing_ok=True)


def learn(directory: Path, run: str, records: Iterable[Mapping[str, Any]]) -> None:
    """Remember what a spool has of a run whose process was killed."""
    memory = read(directory, run)
    for record in records:
        if record.get("run") == run:
            memory.see(record)
    write(directory, run, memory)
