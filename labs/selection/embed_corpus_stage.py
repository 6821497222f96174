"""Stage vectors: corpus and checkpoint -> a vector per document. Imports no torch."""

from __future__ import annotations

from functools import partial
from typing import Literal

from pydantic import Field

from cloze.core.config import StageConfig
from cloze.core.stages.cost import CostEstimate, CostModel, PlannedBuild
from cloze.core.stages.execution import TrainingOptions
from cloze.core.stages.stage import InputSpec, Stage, deferred
from cloze.model.tasks.cost import measure_forward, previous_tokens
from cloze.model.train.plan import estimates
from cloze.model.train.plan.cost import pass_cost, source_model

TEXT_BYTES_A_PIECE = 4.2
USUAL_LENGTH, USUAL_SIZE = 512, 768  # for a checkpoint with an unknown model
KEY_BYTES, NUMBER_BYTES = 8, 2
SHARD = 64 << 20  # bytes of a shard in a rank's memory: table, texts, windows and vectors


class VectorsConfig(StageConfig):
    """Options of the stage vectors."""

    pooling: Literal["mean", "first", "pooler"] | None = None
    """Vector of a window: mean of the last hidden states, the first one, or the pooler's output.
    Default: the checkpoint's, else mean."""

    max_length: int | None = Field(default=None, ge=3)
    """Maximum tokens per window, special tokens included. Default: as the checkpoint was tuned,
    else its maximum."""

    windows: int = Field(default=4, ge=1)
    """Maximum number of windows per document; later text is ignored."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of matrix products, over fp32 weights. auto: bf16 if the hardware has it."""


def estimate(plan: PlannedBuild[VectorsConfig]) -> CostEstimate:
    """Estimate one forward pass over at most `windows` windows per document.

    A previous artifact with equal documents and windows gives the exact number of tokens.
    """
    config, inputs, execution = plan.config, plan.inputs, plan.execution
    _, model, weights = source_model(inputs["checkpoint"])
    documents = float(inputs["corpus"].get("documents") or 0)
    length = config.max_length or (model.max_position_embeddings if model else USUAL_LENGTH)
    size = model.hidden_size if model else USUAL_SIZE
    pieces = float(inputs["corpus"]["bytes"]) / TEXT_BYTES_A_PIECE
    tokens = min(pieces, documents * config.windows * length)
    if plan.before and plan.before.get("documents") == documents:
        fields = {"windows": config.windows, "max_length": config.max_length}
        tokens = previous_tokens(plan.before, **fields) or tokens
    bytes_per_process = int(estimates.PROCESS["cpu"]) + estimates.WEIGHT_BYTES * weights + SHARD
    return pass_cost(
        plan,
        tokens=tokens,
        weights=weights,
        forward=True,
        width=execution.processes * execution.nodes,
        disk_bytes=int(documents * (KEY_BYTES + NUMBER_BYTES * size)),
        memory_bytes=bytes_per_process * execution.processes,
        makes={"documents": documents, "size": size, "tokens": tokens},
    )


# Computes a vector per document for the stage semdedup: the mean over windows of about the model's
# maximum length, scaled to length 1, as integers (core/arrow.py). One file per corpus shard with
# keys, ascending, and vectors.
STAGE = Stage(
    name="vectors",
    version=2,  # 2: windows of scripts without spaces have as many tokens as others
    config=VectorsConfig,
    run=deferred("cloze.labs.selection.embed_corpus:run"),
    inputs={
        "corpus": InputSpec(kinds=("corpus",), required=True),
        "checkpoint": InputSpec(
            kinds=("pretrain",),
            explicit_kinds=("finetune", "import", "merge"),
            required=True,
        ),
    },
    worker="cloze.model",
    on_gpu=True,
    parallel=True,
    unread=frozenset(TrainingOptions.model_fields),
    headline=lambda summary: f"{summary['documents']:,} vectors of {summary['size']} numbers",
    cost_model=CostModel(estimate=estimate, measure=partial(measure_forward, parallel=True)),
)
