"""What the stage dataset takes: it tokenizes the corpus once, and writes each row once, with a few bytes a mask copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.core.cost import PROCESS_BYTES, Computer, Cost, Costs, Facts, Pace, dataset_bytes, without_start
from pipeline.core.execution import Execution

if TYPE_CHECKING:
    from pipeline.dataset.config import DatasetConfig

START = 2.5
SPEED = 800e3  # tokens a second and worker, weighed by their mask copies (the demo: 2.4M of ten copies by two workers in 5 s)
BYTES_A_PIECE = 4.2  # of English with 30,000 pieces
USED_AGAIN = 1.1  # tokens in rows to tokens read: next sentences drawn at random are taken from other documents
FULL = 0.95  # of a row's length
COPY_SHARE = 0.05  # of a copy's work to that of its row


def ahead(
    config: DatasetConfig, inputs: Mapping[str, Facts], execution: Execution, computer: Computer, before: Facts | None
) -> Cost:
    """From the corpus' bytes, and how many of them a piece takes."""
    del before
    corpus, vocab = inputs["corpus"], inputs["vocab"]
    tokens = float(corpus["bytes"]) / float(vocab.get("bytes_per_piece") or BYTES_A_PIECE)
    row_tokens, mean = tokens * USED_AGAIN, FULL * config.length
    vocabulary = 1 << 32 if config.id_type == "uint32" else int(vocab.get("size") or 0)
    rows, masks = dataset_bytes(row_tokens, vocabulary, config.mask_rate, 0 if config.masking == "none" else config.copies)
    width = min(execution.workers, computer.cpus)
    return Cost(
        amount=tokens * (1 + COPY_SHARE * config.copies),
        speed=SPEED,
        start=START,
        width=width,
        disk_bytes=int(2 * rows + masks),  # the parts lie there until the shards are written
        memory_bytes=int((width + 1) * PROCESS_BYTES),
        makes={
            "tokens": tokens,
            "rows": row_tokens / mean,
            "mean_length": mean,
            "length": config.length,
            "vocab_size": vocab.get("size"),
        },
    )


def afterwards(facts: Facts) -> Pace | None:
    """Tokens a second and worker, weighed by the mask copies."""
    copies, workers = int(facts["config"].get("copies", 1)), int(facts["execution"].get("workers", 1))
    amount = float(facts["tokens"]) * (1 + COPY_SHARE * copies)
    return Pace(amount=amount, seconds=without_start(facts["seconds"], START), width=workers)


COSTS = Costs(ahead=ahead, afterwards=afterwards)
