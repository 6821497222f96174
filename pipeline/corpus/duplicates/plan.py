"""Second step of the corpus stage: find the duplicates, choose the mixture, and plan the units."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from cloze.core import storage
from cloze.core.stages.stage import BuildContext
from cloze.pipeline.corpus.duplicates.partitions import decide_in_partitions
from cloze.pipeline.corpus.duplicates.rules import CorpusPlanRequest, decide, local_columns
from cloze.pipeline.corpus.duplicates.unit_plans import (
    PlanUnit,
    read_signatures,
    send_decisions,
    write_units,
)
from cloze.pipeline.corpus.mixing import (
    MixtureSelection,
    copied_key,
    language_name,
    sample_mixture,
)
from cloze.pipeline.corpus.options import MixtureOptions
from cloze.pipeline.runners.exchange import Exchange
from cloze.pipeline.runners.fan_out import fan_out

MOST_SHARDS = 10_000  # with the dropped texts beside them, an artifact has twice as many files


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusPlan:
    """Result of planning.

    Attributes:
        shards: number of shards.
        units: number of units that sort the documents, each of which has plans.
        documents, bytes: totals of the kept documents.
        heldout: number of kept documents that are held out.
        dropped: documents dropped in this step, by reason.
        pairs: dropped duplicates by (kind of the duplicate, kind of the kept document, reason).
        groups: number of documents with dropped duplicates.
        renamed: number of documents whose id got a suffix because another one has it.
        largest: largest number of dropped duplicates of one document.
        unconfirmed: documents kept because not all pairs near the threshold were confirmed.
        split: documents of groups too large for one process, which were compared in parts.
        mixed: groups of `MixtureSelection`.
        examples: (reason, position of the duplicate, position of the kept document); a
            position is (part, batch, row).
    """

    shards: int
    units: int
    documents: int
    bytes: int
    heldout: int
    dropped: Counter[str]
    pairs: Counter[tuple[str, str, str]]
    groups: int
    renamed: int
    largest: int
    unconfirmed: int
    split: int
    examples: list[tuple[str, tuple[int, ...], tuple[int, ...]]]
    mixed: list[dict[str, Any]] = field(default_factory=list)


def plan(build: BuildContext, request: CorpusPlanRequest, documents: int) -> CorpusPlan:
    """Find the duplicates, and write what becomes of the documents of each unit.

    Args:
        build: the build.
        request: parameters of the plan.
        documents: number of documents; many are compared in partitions.
    """
    count = write_units(request.directory, request.parts, request.sizes)
    is_large = documents > build.execution.dedup_in_memory_documents
    if is_large:
        decisions, figures, split = decide_in_partitions(build, request, count, documents)
    else:
        (decisions, figures), split = _decide_here(build, request, count), 0
    decisions.connect(build, "connect-decisions")
    job = PlanUnit(
        directory=request.directory,
        decisions=decisions,
        keep_dropped=request.keep_dropped,
        is_mixed=request.mix is not None,
    )
    dropped: Counter[str] = Counter()
    mixed: list[dict[str, Any]] = []
    if request.mix is not None:
        mixture = _mixed(job, request, request.mix)
        dropped, mixed = mixture.dropped, mixture.groups
    if is_large:
        units = [(f"{unit:05d}-of-{count:05d}", unit) for unit in range(count)]
        results = fan_out(build, "plan", units, job, unit_name="units")
    else:
        results = [job(unit) for unit in range(count)]
    totals = {
        name: sum(result[name] for result in results) for name in ("documents", "bytes", "heldout")
    }
    pairs: Counter[tuple[str, str, str]] = Counter()
    for duplicate, original, reason, number in (pair for one in figures for pair in one["pairs"]):
        pairs[duplicate, original, reason] += number
        dropped[reason] += number
    return CorpusPlan(
        shards=min(MOST_SHARDS, max(1, math.ceil(totals["bytes"] / request.shard_bytes))),
        units=count,
        **totals,
        dropped=dropped,
        pairs=pairs,
        **{
            name: sum(one[name] for one in figures) for name in ("groups", "renamed", "unconfirmed")
        },
        largest=max(one["largest"] for one in figures),
        split=split,
        examples=_examples(figures, request.examples),
        mixed=mixed,
    )


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


def _mixed(job: PlanUnit, request: CorpusPlanRequest, mix: MixtureOptions) -> MixtureSelection:
    """Choose among the kept documents, and write the choice of each unit.

    It takes 60 bytes of memory per kept document.
    """
    tables = []
    for unit in range(job.decisions.places):
        _, signatures, copies = job.retained(unit, ("key", "heldout", "words", "language"))
        table = signatures.append_column("copy", pa.array(copies))
        tables.append(table.filter(pa.array(copies >= 0)))
    whole = pa.concat_tables(tables)
    kept = {name: whole[name].to_numpy() for name in whole.column_names}
    keys = copied_key(kept["key"], kept["copy"])
    if mix.mixture_by == "source":
        names = sorted(set(request.kinds))
        groups = np.array([names.index(kind) for kind in request.kinds], np.int64)[kept["part"]]
    else:
        codes, groups = np.unique(kept["language"], return_inverse=True)
        names = [language_name(int(code)) for code in codes]
    words = kept["words"].astype(np.int64)
    mixture = sample_mixture(keys, words, kept["heldout"], groups, names, mix)
    # a repetition of a renamed document is no copy that another one of its id is
    step = mixture.copies.max(initial=0) + 1
    chosen = mixture.copies + kept["copy"][mixture.numbers] * step
    order = np.argsort(mixture.numbers, kind="stable")
    job.write_chosen(kept["number"][mixture.numbers[order]], chosen[order])
    return mixture
