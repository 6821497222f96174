"""Cost models of finetune and evaluate, and what they share with score and vectors. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cloze.core.stages.execution import (
    CostEstimate,
    CostModel,
    Execution,
    MachineSpec,
    MeasuredThroughput,
    Metadata,
)
from cloze.core.stages.stage import role_of
from cloze.model import hardware
from cloze.model.tasks.files import split_bytes
from cloze.model.tasks.options import TaskOptions
from cloze.model.tasks.table import max_length
from cloze.model.train.plan import estimates
from cloze.model.train.plan.cost import (
    device_of,
    execution_memory,
    pass_cost,
    pass_throughput,
    source_model,
)

if TYPE_CHECKING:
    from cloze.model.tasks.evaluate.config import EvaluateConfig
    from cloze.model.tasks.finetune.config import FinetuneConfig

BYTES_A_PIECE = 4.0
EXAMPLE_TOKENS = 40  # tokens per example, if only the number of examples is known
CORPUS_TOKENS = 60_000  # tokens of a task that reads a corpus, if unknown
BASELINE = 2  # number of trainings with the from-scratch baseline


def previous_tokens(before: Metadata | None, **fields: Any) -> float:
    """Return the tokens of the previous artifact; 0 if one of these config fields differs."""
    if before is None or any(before["config"].get(name) != fields[name] for name in fields):
        return 0.0
    return float(before.get("tokens") or 0)


def measure_forward(
    facts: Metadata, *, copies: float = 1.0, parallel: bool = False
) -> MeasuredThroughput | None:
    """Measure the throughput of a forward pass; None if the summary lacks model size or tokens."""
    weights, tokens = facts.get("parameters"), facts.get("tokens")
    if not weights or not tokens:
        return None
    return pass_throughput(
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
    if tokens := previous_tokens(before, data=data, limit_per_class=limit):
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
    """Estimate a fine-tuning from the task's files, the checkpoint's size and the teacher's."""
    device = device_of(execution, computer)
    spec, model, weights = source_model(inputs.get("checkpoint") or {}, config.model)
    teacher_weights = source_model(inputs["teacher"], None)[2] if "teacher" in inputs else 0
    tokens = _tokens(config.reads(), "train", config.data, before, config.limit_per_class)
    required_memory = (int(estimates.PROCESS["cpu"]) * execution.processes, 0)
    if model is not None:
        longest = max(max_length(name, options) for name, options, _ in config.reads())
        required_memory = execution_memory(
            model,
            min(config.max_length or longest, model.max_position_embeddings),
            config.global_batch,
            execution,
            hardware.of(device, computer),
        )
    return pass_cost(
        tokens=tokens * _passes(config.epochs, config.baselines, bool(config.auxiliary)),
        weights=weights + round(estimates.FORWARD * teacher_weights),
        device=device,
        computer=computer,
        width=execution.processes,
        disk_bytes=estimates.checkpoint_bytes(weights) * (execution.keep_checkpoints + 1),
        memory_bytes=required_memory[0],
        gpu_memory_bytes=required_memory[1],
        makes={"parameters": weights, "model": spec, "tokens": tokens},
    )


def _passes(epochs: float, baselines: bool, auxiliary: bool) -> float:
    """Return the passes of the encoder over the training data; an auxiliary loss takes its own."""
    return epochs * (BASELINE if baselines else 1) * (2 if auxiliary else 1)


def _measure_finetuning(facts: Metadata) -> MeasuredThroughput | None:
    """Measure the throughput of a fine-tuning; the size of the checkpoint gives the weights."""
    config = facts["config"]
    epochs = float(facts.get("epochs") or config.get("epochs", 1))
    passes = _passes(epochs, config.get("baselines", True), bool(config.get("auxiliary")))
    weights = facts["files_bytes"] / estimates.WEIGHT_BYTES
    return pass_throughput(facts, weights=weights, tokens=float(facts["tokens"]) * passes)


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
        weights=sum(
            int(facts.get("parameters") or 0)
            for key, facts in inputs.items()
            if role_of(key) == "checkpoint"
        ),
        device=device_of(execution, computer),
        computer=computer,
        forward=True,
    )


FINETUNE_COSTS = CostModel(estimate=_estimate_finetuning, measure=_measure_finetuning)
# The summary lacks the model size, so only the last duration of the same evaluation is used.
EVALUATE_COSTS = CostModel(estimate=_estimate_evaluation, measure=measure_forward)
