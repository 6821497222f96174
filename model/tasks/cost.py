"""What fine-tuning and evaluation take: passes over the task's examples, by a model of known size. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from model.families.presets import model_config
from model.train import arithmetic
from model.train.cost import BESIDE, PROCESS_BYTES, SPEED, device_of, model_of, training_memory
from pipeline.core.cost import Computer, Cost, Costs, Facts, Pace, without_start
from pipeline.core.execution import Execution

if TYPE_CHECKING:
    from model.tasks.evaluate.config import EvaluateConfig
    from model.tasks.finetune.config import FinetuneConfig

START = 10.0
HEADWAY = 0.4  # of a pretraining's speed: short rows, small batches
BYTES_A_PIECE = 4.0
CORPUS_TOKENS = 60_000  # of a task that reads a corpus, where it is not known better
BASELINE = 2  # trainings, where the same model is trained from random weights too


def _bytes(data: str | None, split: str) -> int | None:
    """The size of the split's files, or of all where none is called so; None: it is not here."""
    if data is None or "://" in data:
        return None
    with suppress(OSError):
        files = [entry for entry in os.scandir(data) if entry.is_file()] if os.path.isdir(data) else []
        named = [entry for entry in files if split in entry.name] or files
        return sum(entry.stat().st_size for entry in named) or None
    return None


def _passes(config: FinetuneConfig) -> int:
    return config.epochs * (BASELINE if config.baselines else 1)


def _tokens(data: str | None, split: str, before: Facts | None) -> float:
    if before is not None and before["config"].get("data") == data and before.get("tokens"):
        return float(before["tokens"])
    size = _bytes(data, split)
    return CORPUS_TOKENS if size is None else size / BYTES_A_PIECE


def ahead(
    config: FinetuneConfig, inputs: Mapping[str, Facts], execution: Execution, computer: Computer, before: Facts | None
) -> Cost:
    """From the task's files and the checkpoint's size."""
    device, source = device_of(execution, computer), inputs.get("checkpoint") or {}
    found = model_of(source) or config.model
    model = None if found is None else model_config(found)
    weights = int(source.get("parameters") or (arithmetic.approximate_parameters(model) if model else 0))
    tokens = _tokens(config.data, "train", before)
    memory = (PROCESS_BYTES * execution.processes, 0)
    if model is not None:
        memory = training_memory(model, config.max_length, config.batch_size, execution, device, computer)
    return Cost(
        amount=(6.0 * weights + BESIDE[device]) * tokens * _passes(config),
        speed=HEADWAY * SPEED[device] * (1 if device == "cuda" else computer.cpus),
        start=START,
        width=execution.processes if device == "cuda" else 1,
        kind=device,
        size=float(weights or 1),
        disk_bytes=arithmetic.BYTES_A_WEIGHT * weights * (execution.keep_checkpoints + 1),
        memory_bytes=memory[0],
        gpu_memory_bytes=memory[1],
        makes={"parameters": weights, "model": found, "tokens": tokens},
    )


def afterwards(facts: Facts) -> Pace | None:
    """Operations a second; the weights follow from the bytes of the checkpoint."""
    weights = facts["files_bytes"] / arithmetic.WEIGHT_BYTES
    passes = int(facts["config"].get("epochs", 1)) * (BASELINE if facts["config"].get("baselines", True) else 1)
    device = str(facts["execution"].get("device", "auto"))
    kind = str(facts.get("device") or ("cuda" if device == "cuda" else "cpu"))
    amount = (6.0 * weights + BESIDE[kind]) * float(facts["tokens"]) * passes
    return Pace(amount=amount, seconds=without_start(facts["seconds"], START), kind=kind, size=weights)


def ahead_of_evaluation(
    config: EvaluateConfig, inputs: Mapping[str, Facts], execution: Execution, computer: Computer, before: Facts | None
) -> Cost:
    """A forward pass over the split."""
    device = device_of(execution, computer)
    weights = int(inputs["checkpoint"].get("parameters") or 0)
    return Cost(
        amount=(2.0 * weights + BESIDE[device] / 3) * _tokens(config.data, config.split, before),
        speed=HEADWAY * SPEED[device] * (1 if device == "cuda" else computer.cpus),
        start=START,
        kind=device,
        size=float(weights or 1),
        disk_bytes=1 << 20,
        memory_bytes=PROCESS_BYTES + arithmetic.WEIGHT_BYTES * weights,
        gpu_memory_bytes=(1 << 30) + arithmetic.WEIGHT_BYTES * weights if device == "cuda" else 0,
    )


def after_evaluation(facts: Facts) -> Pace | None:
    """Nothing says how large the model was: only its own last time helps."""
    del facts
    return None


FINETUNE_COSTS = Costs(ahead=ahead, afterwards=afterwards)
EVALUATE_COSTS = Costs(ahead=ahead_of_evaluation, afterwards=after_evaluation)
