"""What scoring sentences takes: each piece is asked for in a copy of its sentence. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from model.tasks.cost import HEADWAY, START
from model.train import arithmetic, memory
from model.train.arithmetic import BESIDE
from model.train.cost import device_of
from model.train.scale import hardware
from model.train.scale.step import speed
from pipeline.core.cost import Computer, Cost, Costs, Facts, Pace, without_start
from pipeline.core.execution import Execution

if TYPE_CHECKING:
    from model.use.score_config import ScoreConfig

BYTES_A_PIECE = 14.0  # of a line of BLiMP's, with the names of its fields
COPY = 12.0  # pieces of a copy


def _bytes(data: str | None) -> int:
    """The size of a file, or of the files in a directory; 0: it is not here."""
    if data is None or "://" in data:
        return 0
    with suppress(OSError):
        files = [entry.path for entry in os.scandir(data) if entry.is_file()] if os.path.isdir(data) else [data]
        return sum(os.path.getsize(file) for file in files)
    return 0


def ahead(
    config: ScoreConfig, inputs: Mapping[str, Facts], execution: Execution, computer: Computer, before: Facts | None
) -> Cost:
    """A forward pass over a copy of its sentence for every piece."""
    device = device_of(execution, computer)
    weights = int(inputs["checkpoint"].get("parameters") or 0)
    known = before is not None and before["config"].get("data") == config.data and before["config"].get("limit") == config.limit
    tokens = float(before["tokens"]) if known and before and before.get("tokens") else _bytes(config.data) / BYTES_A_PIECE
    return Cost(
        amount=(2.0 * weights + BESIDE[device] / 3) * tokens * COPY,
        speed=HEADWAY * speed(hardware.of(device, computer)),
        start=START,
        kind=device,
        size=float(weights or 1),
        disk_bytes=1 << 20,
        memory_bytes=2 * int(memory.PROCESS["cpu"]) + 2 * arithmetic.WEIGHT_BYTES * weights,
        gpu_memory_bytes=(1 << 30) + 2 * arithmetic.WEIGHT_BYTES * weights if device == "cuda" else 0,
        makes={"tokens": tokens},
    )


def afterwards(facts: Facts) -> Pace | None:
    """Operations a second, where the summary says how large the model was."""
    weights = facts.get("parameters")
    if not weights or not facts.get("tokens"):
        return None
    kind = str(facts.get("device") or "cpu")
    amount = (2.0 * float(weights) + BESIDE[kind] / 3) * float(facts["tokens"]) * COPY
    return Pace(amount=amount, seconds=without_start(facts["seconds"], START), kind=kind, size=float(weights))


SCORE_COSTS = Costs(ahead=ahead, afterwards=afterwards)
