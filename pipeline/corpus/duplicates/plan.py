"""Second step of the corpus stage: find the duplicates, choose the mixture, and plan the units."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from cloze.core import storage
from cloze.core.stages.stage import BuildContext
from cloze.pipeline.corpus.duplicates.mixed_units import choose_in_units
from cloze.pipeline.corpus.duplicates.partitions import decide_in_partitions
from cloze.pipeline.corpus.duplicates.rules import CorpusPlanRequest, decide, local_columns
from cloze.pipeline.corpus.duplicates.unit_plans import (
    DecidedUnits,
    PlanUnit,
    read_signatures,
    send_decisions,
    write_units,
)
from cloze.pipeline.runners.exchange import Exchange
from cloze.pipeline.runners.fan_out import fan_out
from cloze.pipeline.runners.sizes import even_count


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusPlan:
    """Result of planning."""

    shards: int  # number of shards
    units: int  # number of units that sort the documents, each of which has plans
    documents: int  # documents and bytes: totals of the kept documents
    bytes: int
    heldout: int  # number of kept documents that are held out
    dropped: Counter[str]  # documents dropped in this step, by reason
    # dropped duplicates by (kind of the duplicate, kind of the kept document, reason)
    pairs: Counter[tuple[str, str, str]]
    groups: int  # number of documents with dropped duplicates
    renamed: int  # number of documents whose id got a suffix because another one has it
    largest: int  # largest number of dropped duplicates of one document
    unconfirmed: int  # documents kept because not all pairs near the threshold were confirmed
    split: int  # documents of groups too large for one process, which were compared in parts
    # (reason, position of the duplicate, position of the kept document); a position is (part,
    # batch, row)
    examples: list[tuple[str, tuple[int, ...], tuple[int, ...]]]
    mixed: list[dict[str, Any]] = field(default_factory=list)  # summaries of `Mixture`


def plan(build: BuildContext, request: CorpusPlanRequest, documents: int) -> CorpusPlan:
    """Find the duplicates, and write what becomes of the documents of each unit.

    Args:
        documents: number of documents; many are compared in partitions.
    """
    count = write_units(request.directory, request.parts, request.sizes)
    is_large = documents > build.execution.dedup_in_memory_documents
    if is_large:
        decisions, figures, split = decide_in_partitions(build, request, count, documents)
    else:
        (decisions, figures), split = _decide_here(build, request, count), 0
    decisions.connect(build, "connect-decisions")

    def for_each(step: str, job: Any) -> list[dict[str, Any]]:
        if not is_large:
            return [job(unit) for unit in range(count)]
        units = [(f"{unit:05d}-of-{count:05d}", unit) for unit in range(count)]
        return fan_out(build, step, units, job, unit_name="units")

    kinds = sorted(set(request.kinds))
    mix, mixture = request.mix, None
    by_source = mix is not None and mix.mixture_by == "source"
    decided = DecidedUnits(
        directory=request.directory,
        decisions=decisions,
        groups=tuple(map(kinds.index, request.kinds)) if by_source else (),
    )
    if mix is not None:
        mixture = choose_in_units(build, decided, kinds if by_source else (), mix, for_each)
    job = PlanUnit(units=decided, keep_dropped=request.keep_dropped, mixture=mixture)
    results = for_each("plan", job)
    dropped: Counter[str] = sum((Counter(result["dropped"]) for result in results), Counter())
    totals, pairs = _sums(results, "documents", "bytes", "heldout"), Counter[tuple[str, str, str]]()
    for duplicate, original, reason, number in (pair for one in figures for pair in one["pairs"]):
        pairs[duplicate, original, reason] += number
        dropped[reason] += number
    return CorpusPlan(
        shards=even_count(max(1, math.ceil(totals["bytes"] / request.shard_bytes))),
        units=count,
        **totals,
        dropped=dropped,
        pairs=pairs,
        **_sums(figures, "groups", "renamed", "unconfirmed"),
        largest=max(one["largest"] for one in figures),
        split=split,
        examples=_examples(figures, request.examples),
        mixed=mixture.summaries if mixture else [],
    )


def _sums(results: list[dict[str, Any]], *names: str) -> dict[str, int]:
    return {name: sum(result[name] for result in results) for name in names}


def _decide_here(
    build: BuildContext, request: CorpusPlanRequest, units: int
) -> tuple[Exchange, list[dict[str, Any]]]:
    """Decide on all documents in this process; return the decisions and their figures."""

    def batches() -> Iterator[pa.RecordBatch]:
        for unit in range(units):
            yield from read_signatures(request.directory, unit, request.compared_columns())
            build.report.progress(unit + 1, units, "units", {"step": "plan"})

    with local_columns(request.directory) as columns:
        columns.gather(batches())
        table, figures = decide(columns, request)
    decisions = Exchange(
        directory=storage.join(request.directory, "decisions"), runs=1, places=units
    )
    send_decisions(decisions, 0, table)
    return decisions, [figures]


def _examples(
    figures: list[dict[str, Any]], most: int
) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Return the examples with the smallest keys of each reason."""
    by_reason: dict[str, list[Any]] = {}
    for key, reason, *positions in (example for one in figures for example in one["examples"]):
        by_reason.setdefault(reason, []).append((key, *map(tuple, positions)))
    return [
        (reason, *positions)
        for reason in sorted(by_reason, reverse=True)  # near ones first
        for _, *positions in sorted(by_reason[reason])[:most]
    ]
