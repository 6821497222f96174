"""Corpus stage, second step: all references -> which documents stay, of whom the others are copies, and who goes where.

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
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.core import random_keys, storage
from pipeline.corpus.dedup import copies as duplicates
from pipeline.corpus.dedup.copies import I32, I64
from pipeline.corpus.dedup.signatures import MinHash
from pipeline.corpus.parts import PartFile, place, shard_of

KEPT, DUPLICATE_ID, EXACT, NEAR = range(4)
REASONS = ("", "duplicate_id", "exact_duplicate", "near_duplicate")

_BLOCK = 1 << 18

_PLACES = [pa.field(name, pa.int32(), nullable=False) for name in ("part", "batch", "row")]
PLAN = pa.schema(_PLACES)  # a record batch a shard, in the order of keys
COPIES = pa.schema(
    [*_PLACES, pa.field("reason", pa.int8(), nullable=False)]
    + [pa.field(f"of_{name}", pa.int32(), nullable=False) for name in ("part", "batch", "row")]
)


class Columns:
    """The references of all parts, a flat file a column.

    Attributes:
        count: documents.
        begins: int64 [parts + 1], the number of each part's first document.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.begins: I64 = np.zeros(1, dtype=np.int64)
        self._batch_begins: I64 = np.zeros(0, dtype=np.int64)
        self._batch_numbers: I32 = np.zeros(0, dtype=np.int32)
        self._types: dict[str, np.dtype[Any]] = {}

    @property
    def count(self) -> int:
        return int(self.begins[-1])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._types)

    def gather(self, paths: Sequence[str], report: Callable[[int], None] = lambda _: None) -> None:
        """Copy the references files at `paths`, a part each, in their order."""
        files: dict[str, Any] = {}
        begins, batch_begins, batch_numbers, total = [0], [], [], 0
        try:
            for number, path in enumerate(paths):
                with PartFile(path) as part:
                    for batch_number in range(part.batches):
                        batch = part.batch(batch_number)
                        batch_begins.append(total)
                        batch_numbers.append(batch_number)
                        total += batch.num_rows
                        for name in batch.schema.names:
                            values = _flat(batch[name])
                            if name not in files:
                                files[name] = open(os.path.join(self.directory, name), "wb")  # noqa: SIM115 (closed below)
                                self._types[name] = np.dtype((values.dtype, values.shape[1:]))
                            values.tofile(files[name])
                begins.append(total)
                report(number + 1)
        finally:
            for file in files.values():
                file.close()
        self.begins = np.array(begins, dtype=np.int64)
        self._batch_begins = np.array(batch_begins, dtype=np.int64)
        self._batch_numbers = np.array(batch_numbers, dtype=np.int32)

    def load(self, name: str) -> npt.NDArray[Any]:
        """A whole column."""
        if not self.count:
            return np.zeros(0, dtype=np.uint64)
        kind = self._types[name]
        return np.fromfile(os.path.join(self.directory, name), dtype=kind)

    def ranked(self, name: str, by_rank: I64) -> npt.NDArray[Any]:
        """A column in the order of `by_rank`; it is kept in that order, too, for the next time."""
        path = os.path.join(self.directory, f"ranked_{name}")
        if os.path.exists(path):
            return np.fromfile(path, dtype=self._types[name])
        values = self.load(name)
        values = values[by_rank]
        values.tofile(path)
        return values

    def mapped(self, name: str) -> npt.NDArray[Any]:
        """A column on the disk, of which a few rows are wanted."""
        if not self.count:
            return np.zeros((0, 1), dtype=np.uint8)
        kind = self._types[name]
        return np.memmap(os.path.join(self.directory, name), dtype=kind.base, mode="r", shape=(self.count, *kind.shape))

    def where(self, numbers: I64) -> tuple[I32, I32, I32]:
        """Part, batch and row of the documents of these numbers."""
        at = np.searchsorted(self._batch_begins, numbers, side="right") - 1
        part = np.searchsorted(self.begins, numbers, side="right") - 1
        row = numbers - self._batch_begins[at]
        return part.astype(np.int32), self._batch_numbers[at], row.astype(np.int32)


def _flat(column: pa.Array) -> npt.NDArray[Any]:
    """[n], or uint8 [n, width] for fixed-size bytes."""
    if pa.types.is_fixed_size_binary(column.type):
        width = column.type.byte_width
        data = np.frombuffer(column.buffers()[1], dtype=np.uint8)
        return data[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)
    return np.asarray(column.to_numpy(zero_copy_only=False))


@dataclass(frozen=True, slots=True)
class Copies:
    """Who is whose copy.

    Attributes:
        reason: int8 [n], KEPT or why a document is dropped.
        of: int32 [n], the number of the document that stays for it; its own if it stays.
    """

    reason: npt.NDArray[np.int8]
    of: I32


def find_copies(columns: Columns, minhash: MinHash | None, exact: bool, threshold: float = 0.0) -> Copies:
    """Of copies the longest document stays, of equally long ones that of the smallest key.

    Two documents with one id (a page that a dump holds twice) are told by `duplicate_id`.

    Args:
        columns: the references.
        minhash: parameters of the bands; None: near copies stay.
        exact: whether exact copies go.
        threshold: the estimated similarity of a near copy to the document that stays, at least; 0: copies are the connected
            components of shared bands.
    """
    by_rank = _by_rank(columns)
    count = by_rank.size
    reason = np.zeros(count, dtype=np.int8)
    of = np.arange(count, dtype=np.int32)

    def drop(later: I64, first: I64, why: int) -> None:
        reason[later] = why
        of[later] = first.astype(np.int32)

    drop(*duplicates.repeated(columns.ranked("key", by_rank)), DUPLICATE_ID)
    if exact:
        high, low = (columns.ranked(name, by_rank) for name in ("exact_high", "exact_low"))
        drop(*duplicates.exact_copies(high, low, reason == KEPT), EXACT)
        del high, low
    if minhash is not None:
        alive = reason == KEPT
        if threshold:
            held = columns.mapped("sketch")
            label = duplicates.similar_copies(
                lambda band: columns.ranked(f"band_{band:02d}", by_rank),
                minhash.bands,
                alive,
                lambda numbers: held[by_rank[numbers]],
                threshold,
            )
        else:
            bands = (columns.ranked(f"band_{band:02d}", by_rank) for band in range(minhash.bands))
            label = duplicates.linked_copies(bands, alive)
        near = alive & (label != np.arange(count, dtype=np.int32))
        reason[near] = NEAR
        of[near] = label[near]
    of = of[of]  # a copy of a copy: an id's double may be of a document that is a copy itself
    of = of[of]
    copies = Copies(np.empty_like(reason), np.empty_like(of))
    copies.reason[by_rank] = reason
    copies.of[by_rank] = by_rank[of].astype(np.int32)
    return copies


def _by_rank(columns: Columns) -> I64:
    """int64 [n]: the documents, longest first, then by key; equal ones (of one id) in the order of the parts."""
    order = np.argsort(columns.load("key"), kind="stable")
    shorter = np.iinfo(np.uint32).max - columns.load("characters").astype(np.uint32, copy=False)
    return order[np.argsort(shorter[order], kind="stable")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What stays.

    Attributes:
        shards: how many there are.
        documents, bytes: of what stays, int64 [parts].
        heldout: documents of what stays that are held out.
        dropped: documents dropped here, by reason.
        pairs: documents dropped as copies, by (part of the copy, part of what stays), and reason.
        groups: how many documents have copies that were dropped.
        largest: copies of one document that were dropped, at most.
        chosen: examples: (reason, where the copy stands, where what stays stands), each (part, batch, row).
    """

    shards: int
    documents: I64
    bytes: I64
    heldout: int
    dropped: Counter[str]
    pairs: Counter[tuple[int, int, str]]
    groups: int
    largest: int
    chosen: list[tuple[str, tuple[int, int, int], tuple[int, int, int]]]


def plan(
    references: Sequence[str],
    *,
    shard_bytes: int,
    plan_file: str,
    copies_file: str | None,
    minhash: MinHash | None,
    exact: bool,
    threshold: float = 0.0,
    examples: int = 0,
    report: Callable[[int], None] = lambda _: None,
) -> Plan:
    """Find the copies, place what stays, and write the plan for the shards' writers.

    Args:
        references: a file of references for each part.
        shard_bytes: of text in a shard, about.
        plan_file: schema PLAN, a record batch a shard.
        copies_file: schema COPIES, a record batch a shard of rejected documents; None: not wanted.
        minhash, exact, threshold: of `find_copies`.
        examples: how many pairs of copies are chosen to be shown.
        report: called with the number of parts gathered.
    """
    from pipeline.core.arrow import write_arrow

    with tempfile.TemporaryDirectory(prefix="cloze-plan-", dir=_local_directory(plan_file)) as directory:
        columns = Columns(directory)
        columns.gather(references, report)
        copies = find_copies(columns, minhash, exact, threshold)
        kept = np.flatnonzero(copies.reason == KEPT)
        size = columns.load("bytes")
        shards = max(1, math.ceil(int(size[kept].sum()) / shard_bytes))
        key = columns.load("key")
        write_arrow(plan_file, PLAN, _by_shard(columns, kept, key, shards, PLAN))
        dropped = np.flatnonzero(copies.reason != KEPT)
        if copies_file is not None:
            write_arrow(copies_file, COPIES, _by_shard(columns, dropped, key, shards, COPIES, copies))
        return Plan(
            shards=shards,
            heldout=int(np.count_nonzero(columns.load("heldout")[kept])),
            **_figures(columns, copies, kept, size, dropped),
            chosen=_chosen(columns, copies, dropped, key, examples),
        )


def _by_shard(
    columns: Columns, numbers: I64, key: random_keys.U64, shards: int, arrow_schema: pa.Schema, copies: Copies | None = None
) -> Iterator[pa.RecordBatch]:
    """For each shard, where its documents stand, in the order of their keys."""
    numbers = numbers[np.argsort(key[numbers], kind="stable")]
    shard = np.empty(numbers.size, dtype=np.int32)
    for begin in range(0, numbers.size, _BLOCK):
        shard[begin : begin + _BLOCK] = shard_of(place(key[numbers[begin : begin + _BLOCK]]), shards)
    order = np.argsort(shard, kind="stable")
    numbers, edges = numbers[order], np.searchsorted(shard[order], np.arange(shards + 1))
    del order, shard
    for begin, end in zip(edges[:-1], edges[1:], strict=True):
        chosen = numbers[begin:end]
        values: list[npt.NDArray[Any]] = list(columns.where(chosen))
        if copies is not None:
            values += [copies.reason[chosen], *columns.where(copies.of[chosen].astype(np.int64))]
        yield pa.RecordBatch.from_arrays([pa.array(column) for column in values], schema=arrow_schema)


def _figures(columns: Columns, copies: Copies, kept: I64, size: npt.NDArray[Any], dropped: I64) -> dict[str, Any]:
    parts = columns.begins.size - 1
    part = (np.searchsorted(columns.begins, kept, side="right") - 1).astype(np.int64)
    pairs: Counter[tuple[int, int, str]] = Counter()
    copy_part, of_part = (np.searchsorted(columns.begins, which, side="right") - 1 for which in (dropped, copies.of[dropped]))
    combined = (copy_part * parts + of_part) * len(REASONS) + copies.reason[dropped]
    for value, count in zip(*np.unique(combined, return_counts=True), strict=True):
        rest, why = divmod(int(value), len(REASONS))
        pairs[(*divmod(rest, parts), REASONS[why])] = int(count)
    sizes = np.unique(copies.of[dropped], return_counts=True)[1]
    return {
        "documents": np.bincount(part, minlength=parts),
        "bytes": np.bincount(part, size[kept], minlength=parts).astype(np.int64),
        "dropped": Counter(
            {REASONS[why]: int(n) for why, n in zip(*np.unique(copies.reason[dropped], return_counts=True), strict=True)}
        ),
        "pairs": pairs,
        "groups": int(sizes.size),
        "largest": int(sizes.max()) if sizes.size else 0,
    }


def _chosen(columns: Columns, copies: Copies, dropped: I64, key: random_keys.U64, examples: int) -> list[Any]:
    """Pairs of copies of each kind, by the smallest keys of the copies."""
    chosen: list[Any] = []
    for why in (NEAR, EXACT):
        own = dropped[copies.reason[dropped] == why]
        own = own[key[own] <= np.sort(key[own])[:examples][-1]] if own.size else own
        own = own[np.argsort(key[own], kind="stable")[:examples]]
        of = copies.of[own].astype(np.int64)
        for copy, stays in zip(zip(*columns.where(own), strict=True), zip(*columns.where(of), strict=True), strict=True):
            chosen.append((REASONS[why], tuple(map(int, copy)), tuple(map(int, stays))))
    return chosen


def _local_directory(plan_file: str) -> str | None:
    """Beside the plan if that is on a local disk; else where the system keeps temporary files."""
    if not storage.is_local(plan_file):
        return None
    return os.path.dirname(storage.filesystem(plan_file)[1])
