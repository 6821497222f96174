"""What the vectors of a corpus take: a forward pass over the windows of its documents. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from model.families.presets import model_config
from model.tasks.cost import HEADWAY, START
from model.train import arithmetic, memory
from model.train.arithmetic import BESIDE
from model.train.cost import device_of, model_of
from model.train.scale import hardware
from model.train.scale.step import speed
from pipeline.core.cost import Computer, Cost, Costs, Facts, Pace, without_start
from pipeline.core.execution import Execution

if TYPE_CHECKING:
    from model.use.vectors_config import VectorsConfig

BYTES_A_PIECE = 4.2
USUAL_LENGTH, USUAL_SIZE = 512, 768  # of a checkpoint whose model is not known
KEY_BYTES, NUMBER_BYTES = 8, 2
SHARD = 64 << 20  # bytes that a rank holds of a shard: its table, texts, windows and their vectors


def ahead(
    config: VectorsConfig, inputs: Mapping[str, Facts], execution: Execution, computer: Computer, before: Facts | None
) -> Cost:
    """From the corpus' bytes and documents, and the checkpoint's size; a long document's windows are at most so many.

    Where as many documents were read in the same windows before, from the pieces that these were.
    """
    corpus, source, device = inputs["corpus"], inputs["checkpoint"], device_of(execution, computer)
    found = model_of(source)
    model = None if found is None else model_config(found)
    documents, pieces = float(corpus.get("documents") or 0), float(corpus["bytes"]) / BYTES_A_PIECE
    length = config.max_length or (USUAL_LENGTH if model is None else model.max_position_embeddings)
    size = USUAL_SIZE if model is None else model.hidden_size
    tokens = min(pieces, documents * config.windows * length)
    if before and before.get("tokens") and _read(before) == (documents, config.windows, config.max_length):
        tokens = float(before["tokens"])
    weights = int(source.get("parameters") or (arithmetic.approximate_parameters(model) if model else 0))
    each = int(memory.PROCESS["cpu"]) + arithmetic.WEIGHT_BYTES * weights + SHARD
    return Cost(
        amount=_operations(weights, tokens, device),
        speed=HEADWAY * speed(hardware.of(device, computer)),
        start=START,
        width=execution.processes * execution.nodes if device == "cuda" else 1,
        kind=device,
        size=float(weights or 1),
        disk_bytes=int(documents * (KEY_BYTES + NUMBER_BYTES * size)),
        memory_bytes=each * execution.processes,
        gpu_memory_bytes=(1 << 30) + arithmetic.WEIGHT_BYTES * weights if device == "cuda" else 0,
        makes={"documents": documents, "size": size, "tokens": tokens},
    )


def _operations(weights: float, tokens: float, kind: str) -> float:
    """Of a forward pass, with what takes as long beside it on a device of this kind."""
    return (2.0 * weights + BESIDE[kind] / 3) * tokens


def _read(facts: Facts) -> tuple[Any, ...]:
    """How many documents an artifact has the vectors of, and in which windows these were read."""
    return facts.get("documents"), facts["config"].get("windows"), facts["config"].get("max_length")


def afterwards(facts: Facts) -> Pace | None:
    """Operations a second; None of vectors whose summary does not say the model's size and the pieces yet."""
    weights, tokens = facts.get("parameters"), facts.get("tokens")
    if not weights or not tokens:
        return None
    kind = str(facts.get("device") or "cpu")
    width = int(facts["execution"].get("processes", 1)) if kind == "cuda" else 1
    amount = _operations(float(weights), float(tokens), kind)
    return Pace(amount=amount, seconds=without_start(facts["seconds"], START), width=width, kind=kind, size=float(weights))


COSTS = Costs(ahead=ahead, afterwards=afterwards)
