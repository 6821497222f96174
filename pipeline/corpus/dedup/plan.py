"""Corpus stage, second step: all references -> which documents stay, of whom the others are duplicates, and who goes where.

It runs in one process, on columns: every part's references are copied into one flat file a column on the local disk,
and a column is loaded, sorted and forgotten before the next. So a document takes some 50 bytes of memory at the peak and
190 bytes of disk, however long its text is.
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

from pipeline.core import random_keys, storage
from pipeline.corpus.by_shard import write_by_shard
from pipeline.corpus.dedup.columns import Columns
from pipeline.corpus.dedup.duplicates import I32, I64, exact_duplicates, linked_duplicates, repeated, similar_duplicates
from pipeline.corpus.dedup.options import MinHash
from pipeline.corpus.mix_options import MixOptions
from pipeline.corpus.mixing import Taken, copied_key, language_name, take
from pipeline.corpus.parts import place, shard_of

KEPT, DUPLICATE_ID, EXACT, NEAR = range(4)
REASONS = ("", "duplicate_id", "exact_duplicate", "near_duplicate")

_BLOCK = 1 << 18

_PLACES = [pa.field(name, pa.int32(), nullable=False) for name in ("part", "batch", "row")]
PLAN = pa.schema([*_PLACES, pa.field("copy", pa.int32(), nullable=False)])  # a record batch a shard, in the order of keys
DUPLICATES = pa.schema(
    [*_PLACES, pa.field("reason", pa.int8(), nullable=False)]
    + [pa.field(f"of_{name}", pa.int32(), nullable=False) for name in ("part", "batch", "row")]
)


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Which document is a duplicate, and of which.

    Attributes:
        reason: int8 [n], KEPT or why a document is dropped.
        of: int32 [n], the number of the document that stays for it; its own if it stays.
    """

    reason: npt.NDArray[np.int8]
    of: I32


def find_duplicates(columns: Columns, minhash: MinHash | None, exact: bool, threshold: float = 0.0) -> Duplicates:
    """Of duplicates the longest document stays, of equally long ones that of the smallest key.

    Two documents with one id (a page that a dump holds twice) are told by `duplicate_id`.

    Args:
        columns: the references.
        minhash: parameters of the bands; None: near duplicates stay.
        exact: whether exact duplicates go.
        threshold: the estimated similarity of a near duplicate to the document that stays, at least; 0: duplicates are the connected
            components of shared bands.
    """
    by_rank = _by_rank(columns)
    count = by_rank.size
    reason = np.zeros(count, dtype=np.int8)
    of = np.arange(count, dtype=np.int32)

    def drop(later: I64, first: I64, why: int) -> None:
        reason[later] = why
        of[later] = first.astype(np.int32)

    drop(*repeated(columns.ranked("key", by_rank)), DUPLICATE_ID)
    if exact:
        high, low = (columns.ranked(name, by_rank) for name in ("exact_high", "exact_low"))
        drop(*exact_duplicates(high, low, reason == KEPT), EXACT)
        del high, low
    if minhash is not None:
        alive = reason == KEPT
        if threshold:
            held = columns.mapped("sketch")
            label = similar_duplicates(
                lambda band: columns.ranked(f"band_{band:02d}", by_rank),
                minhash.bands,
                alive,
                lambda numbers: held[by_rank[numbers]],
                threshold,
            )
        else:
            bands = (columns.ranked(f"band_{band:02d}", by_rank) for band in range(minhash.bands))
            label = linked_duplicates(bands, alive)
        near = alive & (label != np.arange(count, dtype=np.int32))
        reason[near] = NEAR
        of[near] = label[near]
    of = of[of]  # a duplicate of a duplicate: an id's double may be of a document that is one itself
    of = of[of]
    duplicates = Duplicates(np.empty_like(reason), np.empty_like(of))
    duplicates.reason[by_rank] = reason
    duplicates.of[by_rank] = by_rank[of].astype(np.int32)
    return duplicates


def _by_rank(columns: Columns) -> I64:
    """int64 [n]: the documents, longest first, then by key; equal ones (of one id) in the order of the parts."""
    order = np.argsort(columns.load("key"), kind="stable")
    shorter = np.iinfo(np.uint32).max - columns.load("characters").astype(np.uint32, copy=False)
    return order[np.argsort(shorter[order], kind="stable")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked of a plan.

    Attributes:
        shard_bytes: of text in a shard, about.
        plan_file: schema PLAN, a record batch a shard (pipeline/corpus/by_shard.py).
        duplicates_file: schema DUPLICATES, a record batch a shard of rejected documents, as above; None: not wanted.
        minhash, exact, threshold: of `find_duplicates`.
        examples: how many pairs of duplicates of each kind are chosen to be shown.
        kinds: of source, of each part.
        mix: how much stays of each kind of source or language; None: all.
    """

    shard_bytes: int
    plan_file: str
    duplicates_file: str | None
    minhash: MinHash | None
    exact: bool
    threshold: float
    examples: int
    kinds: Sequence[str]
    mix: MixOptions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What stays.

    Attributes:
        shards: how many there are.
        documents, bytes: of what stays.
        heldout: documents of what stays that are held out.
        dropped: documents dropped here, by reason.
        pairs: documents dropped as duplicates, by (kind of source of the duplicate, of what stays), and reason.
        groups: how many documents have duplicates that were dropped.
        largest: duplicates of one document that were dropped, at most.
        mixed: what `pipeline.corpus.mixing` tells of each source or language.
        chosen: examples: (reason, where the duplicate stands, where what stays stands), each (part, batch, row).
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


def plan(references: Sequence[str], wanted: Wanted, report: Callable[[int], None] = lambda _: None) -> Plan:
    """Find the duplicates, place what stays, and write the plan for the shards' writers.

    Args:
        references: a file of references for each part.
        wanted: of the plan.
        report: called with the number of parts gathered.
    """
    with tempfile.TemporaryDirectory(prefix="cloze-plan-", dir=local_room(wanted.plan_file)) as directory:
        columns = Columns(directory)
        columns.gather(references, report)
        duplicates = find_duplicates(columns, wanted.minhash, wanted.exact, wanted.threshold)
        kept = np.flatnonzero(duplicates.reason == KEPT)
        size, key = columns.load("bytes"), columns.load("key")
        taken = None if wanted.mix is None else _mixed(columns, kept, key, wanted.mix, wanted.kinds)
        copies = np.zeros(kept.size, np.int64) if taken is None else taken.copies
        kept = kept if taken is None else kept[taken.numbers]
        shards = max(1, math.ceil(int(size[kept].sum(dtype=np.int64)) / wanted.shard_bytes))
        by_shard = _by_shard(columns, kept, copied_key(key[kept], copies), shards, PLAN, copies=copies)
        write_by_shard(wanted.plan_file, PLAN, by_shard)
        dropped = np.flatnonzero(duplicates.reason != KEPT)
        if wanted.duplicates_file is not None:
            by_shard = _by_shard(columns, dropped, key[dropped], shards, DUPLICATES, duplicates)
            write_by_shard(wanted.duplicates_file, DUPLICATES, by_shard)
        figures = _figures(columns, duplicates, dropped, wanted.kinds)
        if taken is not None:
            figures["dropped"] += taken.dropped
        return Plan(
            shards=shards,
            documents=int(kept.size),
            bytes=int(size[kept].sum(dtype=np.int64)),
            heldout=int(np.count_nonzero(columns.load("heldout")[kept])),
            mixed=[] if taken is None else taken.groups,
            **figures,
            chosen=_chosen(columns, duplicates, dropped, key, wanted.examples),
        )


def _mixed(columns: Columns, kept: I64, key: random_keys.U64, mix: MixOptions, kinds: Sequence[str]) -> Taken:
    """What of `kept` stays."""
    names = sorted(set(kinds))
    if mix.mixture_by == "source":
        of_part = np.array([names.index(kind) for kind in kinds], np.int64)
        groups = of_part[np.searchsorted(columns.begins, kept, side="right") - 1]
    else:
        groups = columns.load("language")[kept]
    return mixed(key[kept], columns.load("words")[kept], columns.load("heldout")[kept], groups, names, mix)


def mixed(
    key: random_keys.U64,
    words: npt.NDArray[Any],
    heldout: npt.NDArray[Any],
    groups: npt.NDArray[Any],
    names: Sequence[str],
    mix: MixOptions,
) -> Taken:
    """What of some documents stays, by kinds of source or languages.

    Args:
        key, words, heldout: of each document.
        groups: of each document: the number in `names` of its kind of source, or its language's code.
        names: of the kinds.
    """
    if mix.mixture_by == "language":
        codes, groups = np.unique(groups, return_inverse=True)
        names = [language_name(int(code)) for code in codes]
    return take(key, words.astype(np.int64), heldout.astype(np.bool_), groups.astype(np.int64), names, mix)


def _by_shard(
    columns: Columns,
    numbers: I64,
    key: random_keys.U64,
    shards: int,
    arrow_schema: pa.Schema,
    duplicates: Duplicates | None = None,
    copies: I64 | None = None,
) -> Iterator[pa.RecordBatch]:
    """For each shard, where its documents stand, in the order of their keys.

    Args:
        key: uint64 [n], of each of `numbers`.
        copies: int64 [n], which repetition of its document each is.
    """
    order = np.argsort(key, kind="stable")
    numbers, key = numbers[order], key[order]
    copies = None if copies is None else copies[order]
    shard = np.empty(numbers.size, dtype=np.int32)
    for begin in range(0, numbers.size, _BLOCK):
        shard[begin : begin + _BLOCK] = shard_of(place(key[begin : begin + _BLOCK]), shards)
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
            values += [duplicates.reason[chosen], *columns.where(duplicates.of[chosen].astype(np.int64))]
        yield pa.RecordBatch.from_arrays([pa.array(column) for column in values], schema=arrow_schema)


def _figures(columns: Columns, duplicates: Duplicates, dropped: I64, kinds: Sequence[str]) -> dict[str, Any]:
    names = sorted(set(kinds))
    of_part = np.array([names.index(kind) for kind in kinds], np.int64)
    duplicate_kind, of_kind = (
        of_part[np.searchsorted(columns.begins, which, side="right") - 1] for which in (dropped, duplicates.of[dropped])
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
            {REASONS[why]: int(n) for why, n in zip(*np.unique(duplicates.reason[dropped], return_counts=True), strict=True)}
        ),
        "pairs": pairs,
        "groups": int(sizes.size),
        "largest": int(sizes.max()) if sizes.size else 0,
    }


def _chosen(columns: Columns, duplicates: Duplicates, dropped: I64, key: random_keys.U64, examples: int) -> list[Any]:
    """Pairs of duplicates of each kind, by the smallest keys of the duplicates."""
    chosen: list[Any] = []
    for why in (NEAR, EXACT):
        own = dropped[duplicates.reason[dropped] == why]
        own = own[key[own] <= np.sort(key[own])[:examples][-1]] if own.size else own
        own = own[np.argsort(key[own], kind="stable")[:examples]]
        of = duplicates.of[own].astype(np.int64)
        for gone, stays in zip(zip(*columns.where(own), strict=True), zip(*columns.where(of), strict=True), strict=True):
            chosen.append((REASONS[why], tuple(map(int, gone)), tuple(map(int, stays))))
    return chosen


def local_room(path: str) -> str | None:
    """Beside `path` if that is on a local disk; else where the system keeps temporary files."""
    if not storage.is_local(path):
        return None
    return os.path.dirname(storage.filesystem(path)[1])
