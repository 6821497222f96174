"""Second step of the corpus stage: find the duplicates and plan the shards.

It runs in one process, by column: the signatures are copied to one flat file per column on the
local disk; each column is loaded, sorted and released before the next. A document takes about 50
bytes of memory at the peak and 190 bytes of disk, whatever its length.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.core import random_keys, storage
from cloze.pipeline.corpus.duplicates.search import (
    I32,
    I64,
    SignatureColumns,
    component_duplicates,
    exact_duplicates,
    later_occurrences,
    verified_duplicates,
)
from cloze.pipeline.corpus.options import MinHash, MixtureOptions
from cloze.pipeline.corpus.read.intermediate import shard_of, shard_position
from cloze.pipeline.corpus.write.mixing import (
    MixtureSelection,
    copied_key,
    language_name,
    sample_mixture,
)
from cloze.pipeline.corpus.write.shards import write_by_shard

KEPT, DUPLICATE_ID, EXACT, NEAR = range(4)
REASONS = ("", "duplicate_id", "exact_duplicate", "near_duplicate")

_BLOCK = 1 << 18

_PLACES = [pa.field(name, pa.int32(), nullable=False) for name in ("part", "batch", "row")]
PLAN = pa.schema(
    [*_PLACES, pa.field("copy", pa.int32(), nullable=False)]
)  # a record batch per shard, sorted by key
DUPLICATES = pa.schema(
    [*_PLACES, pa.field("reason", pa.int8(), nullable=False)]
    + [pa.field(f"of_{name}", pa.int32(), nullable=False) for name in ("part", "batch", "row")]
)


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Result of deduplication.

    Attributes:
        reason: int8 [n], KEPT or why a document is dropped.
        of: int32 [n], number of the kept document; for kept documents their own number.
    """

    reason: npt.NDArray[np.int8]
    of: I32


def find_duplicates(
    columns: SignatureColumns, minhash: MinHash | None, exact: bool, threshold: float = 0.0
) -> Duplicates:
    """Find the duplicates; keep the longest document, and of equally long ones the smallest key.

    A document whose id occurs before is dropped as `duplicate_id`.

    Args:
        columns: signatures of all documents.
        minhash: parameters of the bands; None: near duplicates are kept.
        exact: drop exact duplicates.
        threshold: minimum estimated similarity of a near duplicate to the kept document; 0: near
            duplicates are the connected components of shared bands.
    """
    by_rank = _by_rank(columns)
    count = by_rank.size
    reason = np.zeros(count, dtype=np.int8)
    of = np.arange(count, dtype=np.int32)

    def drop(later: I64, first: I64, why: int) -> None:
        reason[later] = why
        of[later] = first.astype(np.int32)

    drop(*later_occurrences(columns.ranked("key", by_rank)), DUPLICATE_ID)
    if exact:
        high, low = (columns.ranked(name, by_rank) for name in ("exact_high", "exact_low"))
        drop(*exact_duplicates(high, low, reason == KEPT), EXACT)
        del high, low
    if minhash is not None:
        alive = reason == KEPT
        if threshold:
            held = columns.mapped("sketch")
            label = verified_duplicates(
                lambda band: columns.ranked(f"band_{band:02d}", by_rank),
                minhash.bands,
                alive,
                lambda numbers: held[by_rank[numbers]],
                threshold,
            )
        else:
            bands = (columns.ranked(f"band_{band:02d}", by_rank) for band in range(minhash.bands))
            label = component_duplicates(bands, alive)
        near = alive & (label != np.arange(count, dtype=np.int32))
        reason[near] = NEAR
        of[near] = label[near]
    of = of[of]  # resolve chains: a repeated id may point to a document that is itself a duplicate
    of = of[of]
    duplicates = Duplicates(np.empty_like(reason), np.empty_like(of))
    duplicates.reason[by_rank] = reason
    duplicates.of[by_rank] = by_rank[of].astype(np.int32)
    return duplicates


def _by_rank(columns: SignatureColumns) -> I64:
    """Return the order of the documents, int64 [n]: longest first, then by key, then as read."""
    order = np.argsort(columns.load("key"), kind="stable")
    shorter = np.iinfo(np.uint32).max - columns.load("characters").astype(np.uint32, copy=False)
    return order[np.argsort(shorter[order], kind="stable")]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusPlanRequest:
    """Parameters of a plan.

    Attributes:
        shard_bytes: approximate bytes of text per shard.
        plan_file: output, schema PLAN, a record batch per shard (pipeline/corpus/write/shards.py).
        duplicates_file: output, schema DUPLICATES, a record batch per shard; None: not written.
        minhash, exact, threshold: as in `find_duplicates`.
        examples: number of example pairs per kind of duplicate.
        kinds: kind of source of each intermediate file.
        mix: mixture of sources or languages; None: keep all.
    """

    shard_bytes: int
    plan_file: str
    duplicates_file: str | None
    minhash: MinHash | None
    exact: bool
    threshold: float
    examples: int
    kinds: Sequence[str]
    mix: MixtureOptions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusPlan:
    """Result of planning.

    Attributes:
        shards: number of shards.
        documents, bytes: totals of the kept documents.
        heldout: number of kept documents that are held out.
        dropped: documents dropped in this step, by reason.
        pairs: dropped duplicates by (kind of the duplicate, kind of the kept document, reason).
        groups: number of documents with dropped duplicates.
        largest: largest number of dropped duplicates of one document.
        mixed: groups of `MixtureSelection`.
        chosen: examples: (reason, position of the duplicate, position of the kept document); a
            position is (part, batch, row).
    """

    shards: int
    documents: int
    bytes: int
    heldout: int
    dropped: Counter[str]
    pairs: Counter[tuple[str, str, str]]
    groups: int
    largest: int
    chosen: list[tuple[str, tuple[int, int, int], tuple[int, int, int]]]
    mixed: list[dict[str, Any]] = field(default_factory=list)


def plan(
    references: Sequence[str],
    wanted: CorpusPlanRequest,
    report: Callable[[int], None] = lambda _: None,
) -> CorpusPlan:
    """Find the duplicates, assign the kept documents to shards, and write the plan.

    Args:
        references: file of signatures per intermediate file.
        wanted: parameters of the plan.
        report: called with the number of files read.
    """
    with tempfile.TemporaryDirectory(
        prefix="cloze-plan-", dir=local_scratch_dir(wanted.plan_file)
    ) as directory:
        columns = SignatureColumns(directory)
        columns.gather(references, report)
        duplicates = find_duplicates(columns, wanted.minhash, wanted.exact, wanted.threshold)
        kept = np.flatnonzero(duplicates.reason == KEPT)
        size, key = columns.load("bytes"), columns.load("key")
        taken = None if wanted.mix is None else _mixed(columns, kept, key, wanted.mix, wanted.kinds)
        copies = np.zeros(kept.size, np.int64) if taken is None else taken.copies
        kept = kept if taken is None else kept[taken.numbers]
        shards = max(1, math.ceil(int(size[kept].sum(dtype=np.int64)) / wanted.shard_bytes))
        by_shard = _by_shard(
            columns, kept, copied_key(key[kept], copies), shards, PLAN, copies=copies
        )
        write_by_shard(wanted.plan_file, PLAN, by_shard)
        dropped = np.flatnonzero(duplicates.reason != KEPT)
        if wanted.duplicates_file is not None:
            by_shard = _by_shard(columns, dropped, key[dropped], shards, DUPLICATES, duplicates)
            write_by_shard(wanted.duplicates_file, DUPLICATES, by_shard)
        figures = _figures(columns, duplicates, dropped, wanted.kinds)
        if taken is not None:
            figures["dropped"] += taken.dropped
        return CorpusPlan(
            shards=shards,
            documents=int(kept.size),
            bytes=int(size[kept].sum(dtype=np.int64)),
            heldout=int(np.count_nonzero(columns.load("heldout")[kept])),
            mixed=[] if taken is None else taken.groups,
            **figures,
            chosen=_chosen(columns, duplicates, dropped, key, wanted.examples),
        )


def _mixed(
    columns: SignatureColumns,
    kept: I64,
    key: random_keys.U64,
    mix: MixtureOptions,
    kinds: Sequence[str],
) -> MixtureSelection:
    """Choose among the kept documents."""
    names = sorted(set(kinds))
    if mix.mixture_by == "source":
        of_part = np.array([names.index(kind) for kind in kinds], np.int64)
        groups = of_part[np.searchsorted(columns.begins, kept, side="right") - 1]
    else:
        groups = columns.load("language")[kept]
    return mixed(
        key[kept], columns.load("words")[kept], columns.load("heldout")[kept], groups, names, mix
    )


def mixed(
    key: random_keys.U64,
    words: npt.NDArray[Any],
    heldout: npt.NDArray[Any],
    groups: npt.NDArray[Any],
    names: Sequence[str],
    mix: MixtureOptions,
) -> MixtureSelection:
    """Choose documents by kind of source or language.

    Args:
        key: uint64 [n], document keys.
        words: words per document, [n].
        heldout: bool [n].
        groups: per document: index of its kind in `names`, or its language code, [n].
        names: kinds of source.
    """
    if mix.mixture_by == "language":
        codes, groups = np.unique(groups, return_inverse=True)
        names = [language_name(int(code)) for code in codes]
    return sample_mixture(
        key, words.astype(np.int64), heldout.astype(np.bool_), groups.astype(np.int64), names, mix
    )


def _by_shard(
    columns: SignatureColumns,
    numbers: I64,
    key: random_keys.U64,
    shards: int,
    arrow_schema: pa.Schema,
    duplicates: Duplicates | None = None,
    copies: I64 | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the positions of the documents of each shard, sorted by key.

    Args:
        key: uint64 [n], keys of `numbers`.
        copies: int64 [n], number of the repetition.
    """
    order = np.argsort(key, kind="stable")
    numbers, key = numbers[order], key[order]
    copies = None if copies is None else copies[order]
    shard = np.empty(numbers.size, dtype=np.int32)
    for begin in range(0, numbers.size, _BLOCK):
        shard[begin : begin + _BLOCK] = shard_of(
            shard_position(key[begin : begin + _BLOCK]), shards
        )
    order = np.argsort(shard, kind="stable")
    copies = None if copies is None else copies[order]
    numbers, edges = numbers[order], np.searchsorted(shard[order], np.arange(shards + 1))
    del order, shard
    for begin, end in zip(edges[:-1], edges[1:], strict=True):
        chosen = numbers[begin:end]
        values: list[npt.NDArray[Any]] = list(columns.where(chosen))
        if copies is not None:
            values.append(copies[begin:end].astype(np.int32))
        if duplicates is not None:
            values += [
                duplicates.reason[chosen],
                *columns.where(duplicates.of[chosen].astype(np.int64)),
            ]
        yield pa.RecordBatch.from_arrays(
            [pa.array(column) for column in values], schema=arrow_schema
        )


def _figures(
    columns: SignatureColumns, duplicates: Duplicates, dropped: I64, kinds: Sequence[str]
) -> dict[str, Any]:
    names = sorted(set(kinds))
    of_part = np.array([names.index(kind) for kind in kinds], np.int64)
    duplicate_kind, of_kind = (
        of_part[np.searchsorted(columns.begins, which, side="right") - 1]
        for which in (dropped, duplicates.of[dropped])
    )
    pairs: Counter[tuple[str, str, str]] = Counter()
    combined = (duplicate_kind * len(names) + of_kind) * len(REASONS) + duplicates.reason[dropped]
    for value, count in zip(*np.unique(combined, return_counts=True), strict=True):
        rest, why = divmod(int(value), len(REASONS))
        kind, of = divmod(rest, len(names))
        pairs[names[kind], names[of], REASONS[why]] = int(count)
    sizes = np.unique(duplicates.of[dropped], return_counts=True)[1]
    return {
        "dropped": Counter(
            {
                REASONS[why]: int(n)
                for why, n in zip(
                    *np.unique(duplicates.reason[dropped], return_counts=True), strict=True
                )
            }
        ),
        "pairs": pairs,
        "groups": int(sizes.size),
        "largest": int(sizes.max()) if sizes.size else 0,
    }


def _chosen(
    columns: SignatureColumns,
    duplicates: Duplicates,
    dropped: I64,
    key: random_keys.U64,
    examples: int,
) -> list[Any]:
    """Return example pairs of each kind: the duplicates with the smallest keys."""
    chosen: list[Any] = []
    for why in (NEAR, EXACT):
        own = dropped[duplicates.reason[dropped] == why]
        own = own[key[own] <= np.sort(key[own])[:examples][-1]] if own.size else own
        own = own[np.argsort(key[own], kind="stable")[:examples]]
        of = duplicates.of[own].astype(np.int64)
        for gone, stays in zip(
            zip(*columns.where(own), strict=True), zip(*columns.where(of), strict=True), strict=True
        ):
            chosen.append((REASONS[why], tuple(map(int, gone)), tuple(map(int, stays))))
    return chosen


def local_scratch_dir(path: str) -> str | None:
    """Return the directory of `path` if it is local; else None (the system's default)."""
    if not storage.is_local(path):
        return None
    return os.path.dirname(storage.filesystem(path)[1])
