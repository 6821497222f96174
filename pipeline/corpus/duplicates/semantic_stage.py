"""Stage semdedup: writes a corpus without semantic duplicates, found by embeddings (SemDeDup)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloze.core.humanize import format_count
from cloze.core.stages.execution import (
    PROCESS_BYTES,
    CostEstimate,
    CostModel,
    Execution,
    MachineSpec,
    MeasuredThroughput,
    Metadata,
    subtract_startup,
)
from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult
from cloze.pipeline.corpus.duplicates.semantic_config import (
    UNIT_DOCUMENTS,
    SemDedupConfig,
    clusters_for,
    sample_for,
)

# Cost estimate: products of vectors, and one more copy of the corpus.

START = 3.0
# multiplications per second and worker (AMD EPYC core: 18e9 comparing, 37e9 assigning vectors of
# 256 numbers)
SPEED = 1.5e10
# multiplications that a byte of text equals: read twice, measured and written (78 MB, 24,223
# documents: 7.2 CPU s in total, 450 MB)
TEXT = 600.0
ROUNDS = 20  # maximum of k-means
USUAL_SIZE = 768  # assumed vector size, if unknown
ROW = 40  # bytes per document in the driver's tables and in scratch files


def _work(documents: float, text: float, size: float, clusters: float, rounds: float) -> float:
    """Return the multiplications of k-means, of comparing documents and of the text.

    Each document is compared with all centres and half of its cluster.
    """
    sample = sample_for(int(documents), int(clusters))
    products = sample * clusters * rounds + documents * (clusters + documents / clusters / 2)
    return size * products + TEXT * text


def ahead(
    config: SemDedupConfig,
    inputs: Mapping[str, Metadata],
    execution: Execution,
    computer: MachineSpec,
    before: Metadata | None,
) -> CostEstimate:
    """Estimate the cost from the documents, their text and vector size; all may be kept."""
    corpus, vectors = inputs["corpus"], inputs["vectors"]
    documents, text = float(corpus.get("documents") or 0), float(corpus["bytes"])
    if before is not None and _read(before)[0] == documents:
        text = _read(before)[1]
    size = float(vectors.get("size") or USUAL_SIZE)
    clusters = float(config.clusters or clusters_for(int(documents)))
    sample = sample_for(int(documents), int(clusters))
    width = min(execution.workers, computer.cpus)
    driver_bytes = max(6 * size * sample, ROW * documents)  # the sample and its sums in the driver
    return CostEstimate(
        work=_work(documents, text, size, clusters, min(config.rounds, ROUNDS)),
        speed=SPEED,
        startup_seconds=START,
        parallelism=width,
        disk_bytes=int(1.1 * text + 2 * ROW * documents),
        memory_bytes=int(
            (width + 1) * PROCESS_BYTES
            + driver_bytes
            + width * 6 * size * min(UNIT_DOCUMENTS, documents)
        ),
        expected_metadata={"bytes": text, "documents": documents},
    )


def _read(facts: Metadata) -> tuple[float, float]:
    """Return documents and approximate bytes of the input corpus, from the output's metadata."""
    dropped: Mapping[str, Any] = facts.get("dropped") or {}
    documents = float(facts["documents"]) + sum(dropped.values())
    return documents, float(facts["bytes"]) * documents / max(1.0, float(facts["documents"]))


def afterwards(facts: Metadata) -> MeasuredThroughput | None:
    """Measure the throughput in multiplications; None if the summary lacks the vector size."""
    if not facts.get("size"):
        return None
    documents, text = _read(facts)
    rounds = min(int(facts["config"].get("rounds", ROUNDS)), ROUNDS)
    amount = _work(documents, text, float(facts["size"]), float(facts["clusters"]), rounds)
    return MeasuredThroughput(
        amount=amount,
        seconds=subtract_startup(facts["seconds"], START),
        width=int(facts["execution"].get("workers", 1)),
    )


COSTS = CostModel(estimate=ahead, measure=afterwards)


VERSION = 1


def run(config: SemDedupConfig, build: BuildContext) -> StageResult:
    """Cluster and compare the documents; write those that are kept.

    Raises:
        DataError: the vectors are not those of the corpus.
    """
    from cloze.pipeline.corpus.duplicates.semantic_driver import deduplicate

    return deduplicate(config, build)


def headline(summary: Mapping[str, Any]) -> str:
    """Return a line with kept documents, bytes and drops."""
    return (
        f"{summary['documents']:,} documents, {format_count(summary['bytes'])}B, "
        f"{sum(summary['dropped'].values()):,} dropped"
    )


STAGE = Stage(
    name="semdedup",
    version=VERSION,
    config=SemDedupConfig,
    run=run,
    inputs={
        "corpus": InputSpec(kinds=("corpus",), required=True),
        "vectors": InputSpec(kinds=("vectors",), required=True),
    },
    worker="cloze.pipeline",
    headline=headline,
    cost_model=COSTS,
    comparison_metrics=("documents", "bytes", "words"),
)
