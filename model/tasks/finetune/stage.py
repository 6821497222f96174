"""The stage finetune: pretrained checkpoint and labelled data -> checkpoint, metrics, predictions.

The command line imports this module at every start; it imports only pydantic and the task table.
"""

from __future__ import annotations

from cloze.core.stages.cost import (
    CostEstimate,
    CostModel,
    MeasuredThroughput,
    Metadata,
    PlannedBuild,
)
from cloze.core.stages.stage import InputSpec, Stage, deferred
from cloze.model import hardware
from cloze.model.tasks.cost import split_tokens
from cloze.model.tasks.files import headline
from cloze.model.tasks.finetune.config import FinetuneConfig
from cloze.model.tasks.table import kind_inputs, max_length
from cloze.model.train.plan import estimates
from cloze.model.train.plan.cost import execution_memory, pass_cost, pass_throughput, source_model

VERSION = 6

BASELINE = 2  # number of trainings with the from-scratch baseline


def _estimate_finetuning(plan: PlannedBuild[FinetuneConfig]) -> CostEstimate:
    """Estimate a fine-tuning from the task's files, the checkpoint's size and the teacher's."""
    config, inputs, execution = plan.config, plan.inputs, plan.execution
    spec, model, weights = source_model(inputs.get("checkpoint") or {}, config.model)
    teacher_weights = source_model(inputs["teacher"], None)[2] if "teacher" in inputs else 0
    tokens = split_tokens(config.reads(), "train", config.data, plan.before, config.limit_per_class)
    required_memory = (int(estimates.PROCESS["cpu"]) * execution.processes, 0)
    if model is not None:
        longest = max(max_length(name, options) for name, options, _ in config.reads())
        required_memory = execution_memory(
            model,
            min(config.max_length or longest, model.max_position_embeddings),
            config.global_batch,
            execution,
            hardware.of(plan.device, plan.machine),
        )
    return pass_cost(
        plan,
        tokens=tokens * _passes(config.epochs, config.baselines, bool(config.auxiliary)),
        weights=weights + round(estimates.FORWARD * teacher_weights),
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


FINETUNE_COSTS = CostModel(estimate=_estimate_finetuning, measure=_measure_finetuning)

STAGE = Stage(
    name="finetune",
    version=VERSION,
    config=FinetuneConfig,
    run=deferred("cloze.model.tasks.finetune.run:run"),
    inputs={  # no checkpoint is needed with from_scratch and model
        "checkpoint": InputSpec(
            kinds=("pretrain",), explicit_kinds=("finetune", "import", "merge")
        ),
        "corpus": InputSpec(kinds=("corpus",)),
        "vocab": InputSpec(kinds=("vocab",)),
        "teacher": InputSpec(kinds=("finetune",), explicit_only=True),
        **kind_inputs(),
    },
    unhashed_files=("metrics.jsonl", "skipped.jsonl", "cost.jsonl", "from_scratch.jsonl"),
    worker="cloze.model",
    on_gpu=True,
    parallel=True,
    outputs=("checkpoint", "predictions"),
    headline=headline,
    cost_model=FINETUNE_COSTS,
    comparison_metrics=("metrics",),
)
