"""What fine-tuning and evaluation take: passes over the task's examples, by a model of known size. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from model.families.presets import model_config
from model.tasks.files_read import split_bytes
from model.tasks.options import TaskOptions
from model.tasks.table import KINDS, TASKS
from model.train import arithmetic, memory
from model.train.arithmetic import BESIDE
from model.train.cost import device_of, model_of, training_memory
from model.train.scale import hardware
from model.train.scale.step import speed
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


def _passes(config: FinetuneConfig) -> int:
    return config.epochs * (BASELINE if config.baselines else 1)


def _tokens(read: Iterable[tuple[str, TaskOptions, str | None]], split: str, data: str | None, before: Facts | None) -> float:
    """Args: read: of each task that is read its name, options and data."""
    if before is not None and before["config"].get("data") == data and before.get("tokens"):
        return float(before["tokens"])
    sizes = [split_bytes(path, options, split) for _, options, path in read]
    return sum(CORPUS_TOKENS if size is None else size / BYTES_A_PIECE for size in sizes)


def _longest(config: FinetuneConfig) -> int:
    """What a sequence takes at most, where the model reads as much."""
    kinds = [KINDS[TASKS[name].kind] for name, _, _ in config.reads()]
    return config.max_length or max(kind.max_length for kind in kinds)


def ahead(
    config: FinetuneConfig, inputs: Mapping[str, Facts], execution: Execution, computer: Computer, before: Facts | None
) -> Cost:
    """From the task's files and the checkpoint's size."""
    device, source = device_of(execution, computer), inputs.get("checkpoint") or {}
    found = model_of(source) or config.model
    model = None if found is None else model_config(found)
    weights = int(source.get("parameters") or (arithmetic.approximate_parameters(model) if model else 0))
    tokens = _tokens(config.reads(), "train", config.data, before)
    taken = (int(memory.PROCESS["cpu"]) * execution.processes, 0)
    if model is not None:
        taken = training_memory(
            model, min(_longest(config), model.max_position_embeddings), config.batch_size, execution, device, computer
        )
    return Cost(
        amount=(6.0 * weights + BESIDE[device]) * tokens * _passes(config),
        speed=HEADWAY * speed(hardware.of(device, computer)),
        start=START,
        width=execution.processes if device == "cuda" else 1,
        kind=device,
        size=float(weights or 1),
        disk_bytes=arithmetic.BYTES_A_WEIGHT * weights * (execution.keep_checkpoints + 1),
        memory_bytes=taken[0],
        gpu_memory_bytes=taken[1],
        makes={"parameters": weights, "model": found, "tokens": tokens},
    )


def afterwards(facts: Facts) -> Pace | None:
    """Operations a second; the weights follow from the bytes of the checkpoint."""
    weights = facts["files_bytes"] / arithmetic.WEIGHT_BYTES
    passes = float(facts.get("epochs") or facts["config"].get("epochs", 1)) * (
        BASELINE if facts["config"].get("baselines", True) else 1
    )
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
        amount=(2.0 * weights + BESIDE[device] / 3) * _tokens(config.reads(), config.split, config.data, before),
        speed=HEADWAY * speed(hardware.of(device, computer)),
        start=START,
        kind=device,
        size=float(weights or 1),
        disk_bytes=1 << 20,
        memory_bytes=int(memory.PROCESS["cpu"]) + arithmetic.WEIGHT_BYTES * weights,
        gpu_memory_bytes=(1 << 30) + arithmetic.WEIGHT_BYTES * weights if device == "cuda" else 0,
    )


def after_evaluation(facts: Facts) -> Pace | None:
    """Nothing says how large the model was: only its own last time helps."""
    del facts
    return None


FINETUNE_COSTS = Costs(ahead=ahead, afterwards=afterwards)
EVALUATE_COSTS = Costs(ahead=ahead_of_evaluation, afterwards=after_evaluation)
