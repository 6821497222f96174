"""Stage semdedup: writes a corpus without semantic duplicates, found by embeddings (SemDeDup)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from cloze.core.config import StageConfig
from cloze.core.humanize import format_count
from cloze.core.stages.execution import (
    PROCESS_BYTES,
    CostEstimate,
    CostModel,
    MeasuredThroughput,
    Metadata,
    PlannedBuild,
    subtract_startup,
)
from cloze.core.stages.stage import InputSpec, Stage, deferred

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


def ahead(plan: PlannedBuild[SemDedupConfig]) -> CostEstimate:
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


def afterwards(facts: Metadata) -> MeasuredThroughput | None:
    """Measure the throughput in numbers of vectors; None if the summary lacks their size."""
    documents = float(facts["documents"]) + sum((facts.get("dropped") or {}).values())
    return (
        MeasuredThroughput(
            amount=documents * float(facts["size"]),
            seconds=subtract_startup(facts["seconds"], START),
            width=int(facts["execution"].get("workers", 1)),
        )
        if facts.get("size")
        else None
    )


def headline(summary: Mapping[str, Any]) -> str:
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


STAGE = Stage(
    name="semdedup",
    version=2,
    config=SemDedupConfig,
    run=deferred("cloze.labs.selection.semantic_driver:deduplicate"),
    inputs={
        "corpus": InputSpec(kinds=("corpus",), required=True),
        "vectors": InputSpec(kinds=("vectors",), required=True),
    },
    worker="cloze.pipeline",
    headline=headline,
    cost_model=CostModel(estimate=ahead, measure=afterwards),
    comparison_metrics=("documents", "bytes", "words"),
)
