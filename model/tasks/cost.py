"""Cost models of finetune and evaluate: passes over a task's examples. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

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
from cloze.model.train.plan import estimates
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

BYTES_A_PIECE = 4.0
EXAMPLE_TOKENS = 40  # tokens per example, if only the number of examples is known
CORPUS_TOKENS = 60_000  # tokens of a task that reads a corpus, if unknown
BASELINE = 2  # number of trainings with the from-scratch baseline


def _passes(config: FinetuneConfig) -> int:
    return config.epochs * (BASELINE if config.baselines else 1)


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
    if before is not None and before.get("tokens"):
        previous_config = before["config"]
        if (previous_config.get("data"), previous_config.get("limit_per_class")) == (data, limit):
            return float(before["tokens"])
    tasks = list(read)
    sizes = [split_bytes(path, options, split) for _, options, path in tasks]
    total = sum(CORPUS_TOKENS if size is None else size / BYTES_A_PIECE for size in sizes)
    classes = sum(max(2, len(getattr(options, "labels", ()))) for _, options, _ in tasks)
    return total if limit is None else min(total, float(limit * classes * EXAMPLE_TOKENS))


def _longest(config: FinetuneConfig) -> int:
    """Return the maximum sequence length, before the model's own limit."""
    kinds = [KINDS[TASKS[name].kind] for name, _, _ in config.reads()]
    return config.max_length or max(kind.max_length for kind in kinds)


def ahead(
    config: FinetuneConfig,
    inputs: Mapping[str, Metadata],
    execution: Execution,
    computer: MachineSpec,
    before: Metadata | None,
) -> CostEstimate:
    """Estimate a fine-tuning from the task's files and the checkpoint's size."""
    device = device_of(execution, computer)
    model_name, model, weights = source_model(inputs.get("checkpoint") or {}, config.model)
    tokens = _tokens(config.reads(), "train", config.data, before, config.limit_per_class)
    required_memory = (int(estimates.PROCESS["cpu"]) * execution.processes, 0)
    if model is not None:
        length = min(_longest(config), model.max_position_embeddings)
        device_spec = hardware.of(device, computer)
        required_memory = execution_memory(
            model, length, config.global_batch, execution, device_spec
        )
    return pass_cost(
        tokens=tokens * _passes(config),
        weights=weights,
        device=device,
        computer=computer,
        width=execution.processes,
        disk_bytes=estimates.checkpoint_bytes(weights) * (execution.keep_checkpoints + 1),
        memory_bytes=required_memory[0],
        gpu_memory_bytes=required_memory[1],
        makes={"parameters": weights, "model": model_name, "tokens": tokens},
    )


def afterwards(facts: Metadata) -> MeasuredThroughput | None:
    """Measure the throughput of a fine-tuning; the size of the checkpoint gives the weights."""
    config = facts["config"]
    passes = float(facts.get("epochs") or config.get("epochs", 1))
    passes *= BASELINE if config.get("baselines", True) else 1
    weights = facts["files_bytes"] / estimates.WEIGHT_BYTES
    return pass_pace(facts, weights=weights, tokens=float(facts["tokens"]) * passes)


def ahead_of_evaluation(
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


def after_evaluation(facts: Metadata) -> MeasuredThroughput | None:
    """Return None: the summary lacks the model size, so only its own last duration is used."""
    del facts
    return None


FINETUNE_COSTS = CostModel(estimate=ahead, measure=afterwards)
EVALUATE_COSTS = CostModel(estimate=ahead_of_evaluation, measure=after_evaluation)
