"""What the stage semdedup takes: products of vectors, and the corpus written once more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.core.cost import PROCESS_BYTES, Computer, Cost, Costs, Facts, Pace, without_start
from pipeline.core.execution import Execution
from pipeline.corpus.semantic.config import UNIT_DOCUMENTS, SemDedupConfig, clusters_for, sample_for

START = 3.0
SPEED = 1.5e10  # multiplications a second and worker (an AMD EPYC's core: 18e9 comparing, 37e9 assigning, of vectors of 256 numbers)
TEXT = 600.0  # of them that a byte of text takes: read twice, measured and written (78 MB, 24,223 documents: 7.2 CPU s in all, 450 MB)
ROUNDS = 20  # of k-means, at most
USUAL_SIZE = 768  # numbers of a vector, where they are not known
ROW = 40  # bytes of a document in the driver's tables and on the disk between the steps


def _work(documents: float, text: float, size: float, clusters: float, rounds: float) -> float:
    """Multiplications: k-means on a sample, each document against all centres and half of its cluster, and the text."""
    sample = sample_for(int(documents), int(clusters))
    products = sample * clusters * rounds + documents * (clusters + documents / clusters / 2)
    return size * products + TEXT * text


def ahead(
    config: SemDedupConfig, inputs: Mapping[str, Facts], execution: Execution, computer: Computer, before: Facts | None
) -> Cost:
    """From the documents, their text and the width of their vectors; all may stay. The last artifact tells its text as `afterwards` has it."""
    corpus, vectors = inputs["corpus"], inputs["vectors"]
    documents, text = float(corpus.get("documents") or 0), float(corpus["bytes"])
    if before is not None and _read(before)[0] == documents:
        text = _read(before)[1]
    size = float(vectors.get("size") or USUAL_SIZE)
    clusters = float(config.clusters or clusters_for(int(documents)))
    sample = sample_for(int(documents), int(clusters))
    width = min(execution.workers, computer.cpus)
    held = max(6 * size * sample, ROW * documents)  # the sample and its sums in the driver
    return Cost(
        amount=_work(documents, text, size, clusters, min(config.rounds, ROUNDS)),
        speed=SPEED,
        start=START,
        width=width,
        disk_bytes=int(1.1 * text + 2 * ROW * documents),
        memory_bytes=int((width + 1) * PROCESS_BYTES + held + width * 6 * size * min(UNIT_DOCUMENTS, documents)),
        makes={"bytes": text, "documents": documents},
    )


def _read(facts: Facts) -> tuple[float, float]:
    """Documents and, about, bytes of the corpus that was read, from what stayed of it."""
    dropped: Mapping[str, Any] = facts.get("dropped") or {}
    documents = float(facts["documents"]) + sum(dropped.values())
    return documents, float(facts["bytes"]) * documents / max(1.0, float(facts["documents"]))


def afterwards(facts: Facts) -> Pace | None:
    """Multiplications a second and worker; None where the summary does not say the vectors' width yet."""
    if not facts.get("size"):
        return None
    documents, text = _read(facts)
    rounds = min(int(facts["config"].get("rounds", ROUNDS)), ROUNDS)
    amount = _work(documents, text, float(facts["size"]), float(facts["clusters"]), rounds)
    return Pace(amount=amount, seconds=without_start(facts["seconds"], START), width=int(facts["execution"].get("workers", 1)))


COSTS = Costs(ahead=ahead, afterwards=afterwards)
