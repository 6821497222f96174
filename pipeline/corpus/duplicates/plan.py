"""Second step of the corpus stage: find the duplicates and plan the shards.

It runs in one process, by column: the signatures are copied to one flat file per column on the
local disk; each column is loaded, sorted and released before the next. A document takes about 50
bytes of memory at the peak and 590 bytes of disk, whatever its length. `distributed.py` finds the
duplicates of a larger corpus.
"""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.core import random_keys, storage
from cloze.pipeline.corpus.duplicates.repeated_ids import (
    RepeatedIds,
    are_records,
    number_repeated_ids,
)
from cloze.pipeline.corpus.duplicates.search import (
    I64,
    Bools,
    SignatureColumns,
    component_duplicates,
    exact_duplicates,
    later_occurrences,
    verified_duplicates,
)
from cloze.pipeline.corpus.duplicates.signatures import sure_similarity
from cloze.pipeline.corpus.options import MinHash, MixtureOptions
from cloze.pipeline.corpus.read.intermediate import shard_of, shard_position
from cloze.pipeline.corpus.write.mixing import (
    MixtureSelection,
    copied_key,
    language_name,
    sample_mixture,
)
from cloze.pipeline.corpus.write.shards import write_by_shard

RETAINED, DUPLICATE_ID, EXACT, NEAR = range(4)
REASONS = ("", "duplicate_id", "exact_duplicate", "near_duplicate")

MOST_SHARDS = 10_000  # with the dropped texts beside them, an artifact has twice as many files

_BLOCK = 1 << 18
_SORTED = 1 << 24  # documents assigned to shards at a time, about 40 bytes each

_POSITION = [pa.field(name, pa.int32(), nullable=False) for name in ("part", "batch", "row")]
# A record batch per shard, sorted by key.
PLAN = pa.schema([*_POSITION, pa.field("copy", pa.int32(), nullable=False)])
DUPLICATES = pa.schema(
    [*_POSITION, pa.field("reason", pa.int8(), nullable=False)]
    + [field.with_name(f"of_{field.name}") for field in _POSITION]
)


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Dropped documents.

    Attributes:
        numbers: int64 [k], their numbers, ascending.
        reason: int8 [k], index into REASONS.
        of: int64 [k], number of the kept document.
        repeated: kept documents that share their id with another kept one.
    """

    numbers: I64
    reason: npt.NDArray[np.int8]
    of: I64
    repeated: RepeatedIds


def find_duplicates(
    columns: SignatureColumns,
    minhash: MinHash | None,
    exact: bool,
    threshold: float = 0.0,
    records: Bools | None = None,
) -> Duplicates:
    """Find the duplicates; keep the longest document, and of equally long ones the smallest key.

    Pages of one id are versions of a page: all but one are dropped as `duplicate_id`. Ids of
    records come from a column that the user may have chosen wrongly: their texts decide.

    Args:
        columns: signatures of all documents.
        minhash: parameters of the bands; None: near duplicates are kept.
        exact: drop exact duplicates. Without `minhash` and `exact` nothing is dropped.
        threshold: minimum similarity of a near duplicate to the kept document; 0: near duplicates
            are the connected components of shared bands.
        records: bool [n], documents of sources with columns. Default: none.
    """
    by_rank = _by_rank(columns)
    count = by_rank.size
    reason = np.zeros(count, dtype=np.int8)
    of = np.arange(count, dtype=np.int32)

    def drop(later: I64, first: I64, why: int) -> None:
        reason[later] = why
        of[later] = first.astype(np.int32)

    key = columns.ranked("key", by_rank)
    if exact or minhash is not None:
        pages = None if records is None else ~records[by_rank]
        drop(*later_occurrences(key, pages), DUPLICATE_ID)
    if exact:
        high, low = (columns.ranked(name, by_rank) for name in ("exact_high", "exact_low"))
        drop(*exact_duplicates(high, low, reason == RETAINED), EXACT)
        del high, low
    if minhash is not None:
        alive = reason == RETAINED
        if threshold:
            sketches = columns.mapped("sketch")
            label = verified_duplicates(
                lambda band: columns.ranked(f"band_{band:02d}", by_rank),
                minhash.bands,
                alive,
                lambda numbers: sketches[by_rank[numbers]],
                sure_similarity(threshold),
            )
        else:
            bands = (columns.ranked(f"band_{band:02d}", by_rank) for band in range(minhash.bands))
            label = component_duplicates(bands, alive)
        near = alive & (label != np.arange(count, dtype=np.int32))
        reason[near] = NEAR
        of[near] = label[near]
    # resolve chains: a repeated id may point to an exact duplicate, and that one to a near one
    of = of[of][of[of]]
    dropped = np.flatnonzero(reason != RETAINED)
    dropped = dropped[np.argsort(by_rank[dropped])]
    same_id = np.unique(np.concatenate(later_occurrences(key, reason == RETAINED)))
    high, low = (columns.mapped(f"exact_{half}")[by_rank[same_id]] for half in ("high", "low"))
    repeated = number_repeated_ids(by_rank[same_id], key[same_id], high, low)
    return Duplicates(by_rank[dropped], reason[dropped], by_rank[of[dropped]], repeated)


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
        renamed: number of documents whose id got a suffix because another one has it.
        largest: largest number of dropped duplicates of one document.
        mixed: groups of `MixtureSelection`.
        examples: (reason, position of the duplicate, position of the kept document); a
            position is (part, batch, row).
    """

    shards: int
    documents: int
    bytes: int
    heldout: int
    dropped: Counter[str]
    pairs: Counter[tuple[str, str, str]]
    groups: int
    renamed: int
    largest: int
    examples: list[tuple[str, tuple[int, ...], tuple[int, ...]]]
    mixed: list[dict[str, Any]] = field(default_factory=list)


def plan(
    references: Sequence[str],
    request: CorpusPlanRequest,
    report: Callable[[int], None] = lambda _: None,
) -> CorpusPlan:
    """Find the duplicates, assign the kept documents to shards, and write the plan.

    Args:
        references: file of signatures per intermediate file.
        request: parameters of the plan.
        report: called with the number of files read.
    """
    with local_columns(request.plan_file) as columns:
        columns.gather(references, report)
        records = are_records(request.kinds, np.diff(columns.begins))
        duplicates = find_duplicates(
            columns, request.minhash, request.exact, request.threshold, records
        )
        return write_plan(columns, duplicates, request)


def write_plan(
    columns: SignatureColumns, duplicates: Duplicates, request: CorpusPlanRequest
) -> CorpusPlan:
    """Choose the mixture, assign the documents to shards, and write the plan.

    Args:
        columns: `key`, `bytes` and `heldout` of all documents, and for a mixture `words` and
            `language`.
        duplicates: documents to drop.
        request: parameters of the plan.
    """
    key, size, heldout = (columns.mapped(name) for name in ("key", "bytes", "heldout"))
    original, key = key, duplicates.repeated.distinct_keys(key)
    retained: Bools = np.ones(columns.count, dtype=bool)
    retained[duplicates.numbers] = False
    figures = _figures(columns, duplicates, request.kinds)
    numbers: I64 | None = None  # of the chosen documents; None: all kept ones
    if request.mix is not None:
        mixture = _mixed(columns, key, np.flatnonzero(retained), request.mix, request.kinds)
        numbers, copies = mixture.numbers, mixture.copies
        figures["dropped"] += mixture.dropped
        figures["mixed"] = mixture.groups
    selected: Bools | I64 = retained if numbers is None else numbers
    text_bytes = int(size[selected].sum(dtype=np.int64))
    shards = min(MOST_SHARDS, max(1, math.ceil(text_bytes / request.shard_bytes)))

    def retained_batches() -> Iterator[pa.RecordBatch]:
        if numbers is None:
            for rows in rows_by_shard(key, shards, retained):
                copy = duplicates.repeated.copies_of(rows).astype(np.int32)
                yield pa.record_batch([*columns.where(rows), copy], schema=PLAN)
        else:
            # a repetition of a renamed document is no copy that another one of its id is
            unique = copies + duplicates.repeated.copies_of(numbers) * (copies.max(initial=0) + 1)
            for rows in rows_by_shard(copied_key(original[numbers], unique), shards):
                positions = [*columns.where(numbers[rows]), unique[rows].astype(np.int32)]
                yield pa.record_batch(positions, schema=PLAN)

    def dropped_batches() -> Iterator[pa.RecordBatch]:
        for rows in rows_by_shard(key[duplicates.numbers], shards):
            positions = columns.where(duplicates.numbers[rows])
            originals = columns.where(duplicates.of[rows])
            arrays = [*positions, duplicates.reason[rows], *originals]
            yield pa.record_batch(arrays, schema=DUPLICATES)

    write_by_shard(request.plan_file, PLAN, retained_batches())
    if request.duplicates_file is not None:
        write_by_shard(request.duplicates_file, DUPLICATES, dropped_batches())
    return CorpusPlan(
        shards=shards,
        documents=int(np.count_nonzero(retained) if numbers is None else numbers.size),
        bytes=text_bytes,
        heldout=int(np.count_nonzero(heldout[selected])),
        examples=_example_pairs(columns, duplicates, key, request.examples),
        **figures,
    )


def _mixed(
    columns: SignatureColumns,
    keys: random_keys.U64,
    retained: I64,
    mix: MixtureOptions,
    kinds: Sequence[str],
) -> MixtureSelection:
    """Choose among the kept documents; the numbers of the selection are those of documents."""
    key = keys[retained]
    words, heldout = (columns.mapped(name)[retained] for name in ("words", "heldout"))
    if mix.mixture_by == "source":
        names = sorted(set(kinds))
        groups = _kind_numbers(columns, kinds, retained)
    else:
        codes, groups = np.unique(columns.mapped("language")[retained], return_inverse=True)
        names = [language_name(int(code)) for code in codes]
    selection = sample_mixture(
        key, words.astype(np.int64), heldout, groups.astype(np.int64), names, mix
    )
    return replace(selection, numbers=retained[selection.numbers])


def _kind_numbers(columns: SignatureColumns, kinds: Sequence[str], numbers: I64) -> I64:
    """Return the kind of source of documents, int64 [n], as an index into the sorted kinds."""
    names = sorted(set(kinds))
    of_part = np.array([names.index(kind) for kind in kinds], np.int64)
    return of_part[np.searchsorted(columns.begins, numbers, side="right") - 1]


def rows_by_shard(
    keys: random_keys.U64, shards: int, selected: Bools | None = None
) -> Iterator[I64]:
    """Yield the rows of each shard, sorted by key, int64 [rows].

    Args:
        keys: uint64 [n], key of each row; shards are ranges of a hash of it.
        shards: number of shards. As many are sorted at a time as hold about `_SORTED` rows.
        selected: bool [n], rows to assign. Default: all.
    """
    step = max(1, shards * _SORTED // max(1, keys.size))
    for first in range(0, shards, step):
        last = min(first + step, shards)
        row_blocks, shard_blocks = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
        for begin in range(0, keys.size, _BLOCK):
            block = np.arange(begin, min(begin + _BLOCK, keys.size))
            block = block if selected is None else block[selected[block]]
            shard = shard_of(shard_position(keys[block]), shards).astype(np.int32)
            inside = (shard >= first) & (shard < last)
            row_blocks.append(block[inside])
            shard_blocks.append(shard[inside])
        rows, shard_numbers = np.concatenate(row_blocks), np.concatenate(shard_blocks)
        order = np.argsort(keys[rows], kind="stable")
        rows, shard_numbers = rows[order], shard_numbers[order]
        order = np.argsort(shard_numbers, kind="stable")
        rows = rows[order]
        edges = np.searchsorted(shard_numbers[order], np.arange(first, last + 1))
        for begin, end in itertools.pairwise(edges):
            yield rows[begin:end]


def _figures(
    columns: SignatureColumns, duplicates: Duplicates, kinds: Sequence[str]
) -> dict[str, Any]:
    """Return the fields of `CorpusPlan` about duplicates, without the examples."""
    names = sorted(set(kinds))
    duplicate_kinds, original_kinds = (
        _kind_numbers(columns, kinds, numbers) for numbers in (duplicates.numbers, duplicates.of)
    )
    pairs: Counter[tuple[str, str, str]] = Counter()
    dropped: Counter[str] = Counter()
    combined = (duplicate_kinds * len(names) + original_kinds) * len(REASONS) + duplicates.reason
    for value, count in zip(*np.unique(combined, return_counts=True), strict=True):
        rest, why = divmod(int(value), len(REASONS))
        duplicate_kind, original_kind = divmod(rest, len(names))
        pairs[names[duplicate_kind], names[original_kind], REASONS[why]] = int(count)
        dropped[REASONS[why]] += int(count)
    sizes = np.unique(duplicates.of, return_counts=True)[1]
    return {
        "dropped": dropped,
        "pairs": pairs,
        "groups": int(sizes.size),
        "renamed": int(duplicates.repeated.numbers.size),
        "largest": int(sizes.max(initial=0)),
    }


def _example_pairs(
    columns: SignatureColumns, duplicates: Duplicates, key: random_keys.U64, examples: int
) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Return example pairs of each kind: the duplicates with the smallest keys."""

    def position(number: int) -> tuple[int, ...]:
        return tuple(int(column[0]) for column in columns.where(np.array([number])))

    pairs = []
    dropped_key = key[duplicates.numbers]
    for why in (NEAR, EXACT):
        rows = np.flatnonzero(duplicates.reason == why)
        for row in rows[np.argsort(dropped_key[rows], kind="stable")[:examples]].tolist():
            pair = position(duplicates.numbers[row]), position(duplicates.of[row])
            pairs.append((REASONS[why], *pair))
    return pairs


@contextmanager
def local_columns(path: str) -> Iterator[SignatureColumns]:
    """Give columns in a temporary directory, next to `path` if that is local."""
    parent = os.path.dirname(storage.filesystem(path)[1]) if storage.is_local(path) else None
    with tempfile.TemporaryDirectory(prefix="cloze-plan-", dir=parent) as directory:
        yield SignatureColumns(directory)
