"""What the cost models of the stages that read tasks share. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cloze.core.stages.cost import MeasuredThroughput, Metadata
from cloze.model.tasks.files import split_bytes
from cloze.model.tasks.options import TaskOptions
from cloze.model.train.plan.cost import pass_throughput

BYTES_A_PIECE = 4.0
EXAMPLE_TOKENS = 40  # tokens per example, if only the number of examples is known
CORPUS_TOKENS = 60_000  # tokens of a task that reads a corpus, if unknown


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


def split_tokens(
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
