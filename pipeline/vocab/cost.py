"""What the stage vocab takes: it trains on a sample of the corpus, and measures on held-out text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.core.cost import PROCESS_BYTES, Computer, Cost, Costs, Facts, Pace, without_start
from pipeline.core.execution import Execution

if TYPE_CHECKING:
    from pipeline.vocab.config import VocabConfig

START = 2.5
SPEED = 2.5e6  # bytes of sampled text a second
USUAL_SIZE = 30_000  # pieces, where the config leaves it to the kind
MEMORY = 6  # bytes held for a byte of the sample: words and their counts, candidates


def ahead(
    config: VocabConfig, inputs: Mapping[str, Facts], execution: Execution, computer: Computer, before: Facts | None
) -> Cost:
    """From the size of the sample."""
    del execution, computer, before
    sample = min(float(config.sample_bytes), float(inputs["corpus"]["bytes"])) if "corpus" in inputs else 0.0
    return Cost(
        amount=sample,
        speed=SPEED,
        start=START,
        disk_bytes=4 << 20,
        memory_bytes=int(PROCESS_BYTES + MEMORY * sample),
        makes={"size": config.size or USUAL_SIZE},
    )


def afterwards(facts: Facts) -> Pace | None:
    """Bytes of sampled text a second."""
    sample = float(facts.get("sample_bytes") or 0)
    return Pace(amount=sample, seconds=without_start(facts["seconds"], START)) if sample else None


COSTS = Costs(ahead=ahead, afterwards=afterwards)
