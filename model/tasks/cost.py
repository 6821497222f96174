"""Cost models of the stages that run a checkpoint: passes over tokens. No torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from cloze.core.stages.execution import (
    CostEstimate,
    CostModel,
    Execution,
    MachineSpec,
    MeasuredThroughput,
    Metadata,
)
from cloze.model import hardware
from cloze.model.tasks.files import split_bytes
from cloze.model.tasks.options import TaskOptions
from cloze.model.tasks.table import KINDS, TASKS
from cloze.model.train.plan import flops, memory
from cloze.model.train.plan.cost import (
    device_of,
    execution_memory,
    pass_cost,
    pass_pace,
    source_model,
)

if TYPE_CHECKING:
    from cloze.model.tasks.evaluate.stage import EvaluateConfig
    from cloze.model.tasks.finetune.stage import FinetuneConfig
    from cloze.model.use.configs import ScoreConfig, VectorsConfig

BYTES_A_PIECE = 4.0
EXAMPLE_TOKENS = 40  # tokens per example, if only the number of examples is known
CORPUS_TOKENS = 60_000  # tokens of a task that reads a corpus, if unknown
BASELINE = 2  # number of trainings with the from-scratch baseline


def _previous_tokens(before: Metadata | None, **fields: Any) -> float:
    """Return the tokens of the previous artifact; 0 if one of these config fields differs."""
    if before is None or any(before["config"].get(name) != fields[name] for name in fields):
        return 0.0
    return float(before.get("tokens") or 0)


def _measure_forward(
    facts: Metadata, *, copies: float = 1.0, parallel: bool = False
) -> MeasuredThroughput | None:
    """Measure the throughput of a forward pass; None if the summary lacks model size or tokens."""
    weights, tokens = facts.get("parameters"), facts.get("tokens")
    if not weights or not tokens:
        return None
    return pass_pace(
        facts,
        weights=float(weights),
        tokens=float(tokens) * copies,
        forward=True,
        width=int(facts["execution"].get("processes", 1)) if parallel else 1,
    )


# finetune and evaluate: passes over a task's examples.


def _tokens(
    read: Iterable[tuple[str, TaskOptions, str | None]],
    split: str,
    data: str | None,
    before: Metadata | None,
    limit: int | None = None,
) -> float:
    """Estimate the tokens of a split.

    Args:
        read: name, options and data path of each task.
        limit: maximum examples per class.
    """
    if tokens := _previous_tokens(before, data=data, limit_per_class=limit):
        return tokens
    tasks = list(read)
    sizes = [split_bytes(path, options, split) for _, options, path in tasks]
    total = sum(CORPUS_TOKENS if size is None else size / BYTES_A_PIECE for size in sizes)
    classes = sum(max(2, len(getattr(options, "labels", ()))) for _, options, _ in tasks)
    return total if limit is None else min(total, float(limit * classes * EXAMPLE_TOKENS))


def _estimate_finetuning(
    config: FinetuneConfig,
    inputs: Mapping[str, Metadata],
    execution: Execution,
    computer: MachineSpec,
    before: Metadata | None,
) -> CostEstimate:
    """Estimate a fine-tuning from the task's files and the checkpoint's size."""
    device = device_of(execution, computer)
    spec, model, weights = source_model(inputs.get("checkpoint") or {}, config.model)
    tokens = _tokens(config.reads(), "train", config.data, before, config.limit_per_class)
    required_memory = (int(memory.PROCESS["cpu"]) * execution.processes, 0)
    if model is not None:
        longest = max(KINDS[TASKS[name].kind].max_length for name, _, _ in config.reads())
        required_memory = execution_memory(
            model,
            min(config.max_length or longest, model.max_position_embeddings),
            config.global_batch,
            execution,
            hardware.of(device, computer),
        )
    return pass_cost(
        tokens=tokens * config.epochs * (BASELINE if config.baselines else 1),
        weights=weights,
        device=device,
        computer=computer,
        width=execution.processes,
        disk_bytes=flops.checkpoint_bytes(weights) * (execution.keep_checkpoints + 1),
        memory_bytes=required_memory[0],
        gpu_memory_bytes=required_memory[1],
        makes={"parameters": weights, "model": spec, "tokens": tokens},
    )


def _measure_finetuning(facts: Metadata) -> MeasuredThroughput | None:
    """Measure the throughput of a fine-tuning; the size of the checkpoint gives the weights."""
    config = facts["config"]
    passes = float(facts.get("epochs") or config.get("epochs", 1))
    passes *= BASELINE if config.get("baselines", True) else 1
    weights = facts["files_bytes"] / flops.WEIGHT_BYTES
    return pass_pace(facts, weights=weights, tokens=float(facts["tokens"]) * passes)


def _estimate_evaluation(
    config: EvaluateConfig,
    inputs: Mapping[str, Metadata],
    execution: Execution,
    computer: MachineSpec,
    before: Metadata | None,
) -> CostEstimate:
    """Estimate a forward pass over the split."""
    return pass_cost(
        tokens=_tokens(config.reads(), config.split, config.data, before),
        weights=int(inputs["checkpoint"].get("parameters") or 0),
        device=device_of(execution, computer),
        computer=computer,
        forward=True,
    )


FINETUNE_COSTS = CostModel(estimate=_estimate_finetuning, measure=_measure_finetuning)
# The summary lacks the model size, so only the last duration of the same evaluation is used.
EVALUATE_COSTS = CostModel(estimate=_estimate_evaluation, measure=_measure_forward)

# score and vectors: forward passes over sentences and documents.

LINE_BYTES_A_PIECE = 14.0  # bytes per token in a line of BLiMP, field names included
COPY = 12.0  # tokens of a sentence: each token is predicted in a masked copy of its sentence
TEXT_BYTES_A_PIECE = 4.2
USUAL_LENGTH, USUAL_SIZE = 512, 768  # for a checkpoint with an unknown model
KEY_BYTES, NUMBER_BYTES = 8, 2
SHARD = 64 << 20  # bytes of a shard in a rank's memory: table, texts, windows and vectors


def _bytes(data: str | None) -> int:
    """Return the size of a file or of the files in a directory; 0 if it does not exist here."""
    if data is not None and "://" not in data:
        with suppress(OSError):
            is_dir = os.path.isdir(data)
            files = [file.path for file in os.scandir(data) if file.is_file()] if is_dir else [data]
            return sum(map(os.path.getsize, files))
    return 0


def _estimate_scores(
    config: ScoreConfig,
    inputs: Mapping[str, Metadata],
    execution: Execution,
    computer: MachineSpec,
    before: Metadata | None,
) -> CostEstimate:
    """Estimate one forward pass over a sentence copy per token."""
    device = device_of(execution, computer)
    tokens = _previous_tokens(before, data=config.data, limit=config.limit)
    tokens = tokens or _bytes(config.data) / LINE_BYTES_A_PIECE
    weights = int(inputs["checkpoint"].get("parameters") or 0)
    loaded = 2 * flops.WEIGHT_BYTES * weights
    return pass_cost(
        tokens=tokens * COPY,
        weights=weights,
        device=device,
        computer=computer,
        forward=True,
        memory_bytes=2 * int(memory.PROCESS["cpu"]) + loaded,
        gpu_memory_bytes=(1 << 30) + loaded if device == "cuda" else 0,
        makes={"tokens": tokens},
    )


def _estimate_vectors(
    config: VectorsConfig,
    inputs: Mapping[str, Metadata],
    execution: Execution,
    computer: MachineSpec,
    before: Metadata | None,
) -> CostEstimate:
    """Estimate one forward pass over at most `windows` windows per document.

    A previous artifact with equal documents and windows gives the exact number of tokens.
    """
    _, model, weights = source_model(inputs["checkpoint"])
    documents = float(inputs["corpus"].get("documents") or 0)
    length = config.max_length or (model.max_position_embeddings if model else USUAL_LENGTH)
    size = model.hidden_size if model else USUAL_SIZE
    pieces = float(inputs["corpus"]["bytes"]) / TEXT_BYTES_A_PIECE
    tokens = min(pieces, documents * config.windows * length)
    if before and before.get("documents") == documents:
        fields = {"windows": config.windows, "max_length": config.max_length}
        tokens = _previous_tokens(before, **fields) or tokens
    bytes_per_process = int(memory.PROCESS["cpu"]) + flops.WEIGHT_BYTES * weights + SHARD
    return pass_cost(
        tokens=tokens,
        weights=weights,
        device=device_of(execution, computer),
        computer=computer,
        forward=True,
        width=execution.processes * execution.nodes,
        disk_bytes=int(documents * (KEY_BYTES + NUMBER_BYTES * size)),
        memory_bytes=bytes_per_process * execution.processes,
        makes={"documents": documents, "size": size, "tokens": tokens},
    )


SCORE_COSTS = CostModel(estimate=_estimate_scores, measure=partial(_measure_forward, copies=COPY))
VECTORS_COSTS = CostModel(
    estimate=_estimate_vectors, measure=partial(_measure_forward, parallel=True)
)
