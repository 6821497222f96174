"""Configs, costs and stages of the lab. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from pydantic import Field

from cloze.core.config import StageConfig
from cloze.core.humanize import format_count
from cloze.core.stages.cost import (
    PROCESS_BYTES,
    CostEstimate,
    CostModel,
    MeasuredThroughput,
    Metadata,
    PlannedBuild,
)
from cloze.core.stages.execution import TrainingOptions
from cloze.core.stages.stage import InputSpec, Stage, deferred
from cloze.model.tasks.cost import measure_forward, previous_tokens
from cloze.model.train.plan import estimates
from cloze.model.train.plan.cost import pass_cost, source_model
from cloze.pipeline.corpus.sources import Source, list_sources, source_fingerprints


class FilterConfig(StageConfig):
    """Config of the stage `filter`."""

    good: tuple[Source, ...] = Field(min_length=1)
    """Source of good documents, which a filter should keep. Repeatable."""

    bad: tuple[Source, ...] = Field(min_length=1)
    """Source of bad documents, which a filter should drop. Repeatable."""

    bits: int = Field(default=20, ge=10, le=28)
    """Number of hash buckets of n-grams, as a power of two."""

    language: str = Field(default="en", pattern="^[a-z]{2,3}$")
    """Language of the text (ISO 639)."""

    def external_fingerprints(self) -> dict[str, str]:
        """Return the fingerprints `good/source/KIND` and `bad/source/KIND`."""
        return {
            f"{side}/{name}": sha256
            for side, sources in (("good", self.good), ("bad", self.bad))
            for name, sha256 in source_fingerprints(list_sources(sources).slices).items()
        }


def filter_headline(summary: Mapping[str, Any]) -> str:
    """Return a line with the numbers of documents and the AUC."""
    counts = summary["documents"]
    return (
        f"{counts['good']:,} good and {counts['bad']:,} bad documents, AUC {summary['auc']:.3f} on "
        f"held-out ones"
    )


# Trains a quality filter, which the corpus stage applies in its step `learned`. Documents are read
# and cleaned as in that stage. A fifth of them, chosen by document key, is held out.
FILTER = Stage(
    name="filter",
    version=1,
    config=FilterConfig,
    run=deferred("cloze.labs.selection.quality_filter:run"),
    worker="cloze.pipeline",
    headline=filter_headline,
    comparison_metrics=("auc",),
)


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


def vectors_cost(plan: PlannedBuild[VectorsConfig]) -> CostEstimate:
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
VECTORS = Stage(
    name="vectors",
    version=2,  # 2: windows of scripts without spaces have as many tokens as others
    config=VectorsConfig,
    run=deferred("cloze.labs.selection.embed_corpus:run"),
    inputs={
        "corpus": InputSpec(kinds=("corpus",), required=True),
        "checkpoint": InputSpec(
            kinds=("pretrain",), explicit_kinds=("finetune", "import", "merge"), required=True
        ),
    },
    worker="cloze.model",
    on_gpu=True,
    parallel=True,
    unread=frozenset(TrainingOptions.model_fields),
    headline=lambda summary: f"{summary['documents']:,} vectors of {summary['size']} numbers",
    cost_model=CostModel(estimate=vectors_cost, measure=partial(measure_forward, parallel=True)),
)


SAMPLE = 1 << 16  # documents that centres and mean are computed of
UNIT_DOCUMENTS = 20_000  # approximate number of documents per unit


class SemDedupConfig(StageConfig):
    """Config of the stage `semdedup`."""

    similarity: float = Field(default=0.95, gt=0, le=1)
    """Minimum cosine similarity to a kept document at which a document is dropped."""

    center: bool = True
    """Subtract the mean of all embeddings first; cosines of a model that was not tuned for
    retrieval are all high."""

    clusters: int | None = Field(default=None, ge=1)
    """Number of clusters within which documents are compared; those of more than 4,000 documents
    are divided again. Default: one per 2,000 documents, at most 1,024."""

    rounds: int = Field(default=20, ge=1)
    """Maximum number of k-means iterations."""


def clusters_for(documents: int) -> int:
    """Return the default number of clusters of the first division."""
    return max(1, min(documents // 2000, 1024))


# Cost estimate. Everything is linear in the numbers of the vectors: each is compared with centres,
# questions and half of a cluster (2,400 products), and comes with about 10 bytes of text.
START, SPEED = 3.0, 6e6  # seconds; numbers per second and worker (core of an AMD EPYC)
SIZE, ROW = 768, 40  # numbers of a vector, if unknown; other bytes per document in scratch files


def semdedup_cost(plan: PlannedBuild[SemDedupConfig]) -> CostEstimate:
    """Estimate the cost from the documents, their text and vector size; all may be kept."""
    inputs, clusters = plan.inputs, plan.config.clusters
    corpus, size = inputs["corpus"], float(inputs["vectors"].get("size") or SIZE)
    documents, text = float(corpus.get("documents") or 0), float(corpus["bytes"])
    width = min(plan.execution.workers, plan.machine.cpus)
    unit = max(min(UNIT_DOCUMENTS, documents), documents / (clusters or 1024))
    held = PROCESS_BYTES + 6 * size * max(unit, min(SAMPLE, documents))
    return CostEstimate(
        work=size * documents,
        speed=SPEED,
        startup_seconds=START,
        parallelism=width,
        disk_bytes=int(1.1 * text + (2 * size + ROW) * documents),
        memory_bytes=int((width + 1) * held + ROW * documents),
        expected_metadata={"bytes": text, "documents": documents},
    )


def semdedup_throughput(facts: Metadata) -> MeasuredThroughput | None:
    """Measure the throughput in numbers of vectors; None if the summary lacks their size."""
    if not facts.get("size"):
        return None
    documents = float(facts["documents"]) + sum((facts.get("dropped") or {}).values())
    return MeasuredThroughput.by_workers(facts, documents * float(facts["size"]), START)


def semdedup_headline(summary: Mapping[str, Any]) -> str:
    """Return a line with kept documents, bytes, drops, and what clusters hid in a sample."""
    text = (
        f"{summary['documents']:,} documents, {format_count(summary['bytes'])}B, "
        f"{sum(summary['dropped'].values()):,} dropped"
    )
    if not (found := summary.get("recall")):
        return text
    return (
        f"{text}; of {found['sample']} documents searched in the whole corpus {found['near']} have "
        f"a similar one, {found['in_cluster']} in their cluster"
    )


SEMDEDUP = Stage(
    name="semdedup",
    version=2,
    config=SemDedupConfig,
    run=deferred("cloze.labs.selection.semantic_driver:deduplicate"),
    inputs={
        "corpus": InputSpec(kinds=("corpus",), required=True),
        "vectors": InputSpec(kinds=("vectors",), required=True),
    },
    worker="cloze.pipeline",
    headline=semdedup_headline,
    cost_model=CostModel(estimate=semdedup_cost, measure=semdedup_throughput),
    comparison_metrics=("documents", "bytes", "words"),
)
