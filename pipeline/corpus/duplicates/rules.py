"""Rules on duplicates: which documents are dropped, for which one, and why.

The signatures of the documents are copied to one flat file per column on the local disk; each
column is loaded, sorted and released before the next. A document takes about 50 bytes of memory at
the peak and 610 bytes of disk, whatever its length.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.core import storage
from cloze.core.ragged import I64
from cloze.pipeline.corpus.duplicates.repeated_ids import (
    RepeatedIds,
    are_records,
    number_repeated_ids,
)
from cloze.pipeline.corpus.duplicates.search import (
    Bools,
    Comparison,
    SignatureColumns,
    component_duplicates,
    exact_duplicates,
    later_occurrences,
    verified_duplicates,
)
from cloze.pipeline.corpus.duplicates.unit_plans import (
    DECISIONS,
    DUPLICATE_ID,
    EXACT,
    NEAR,
    REASONS,
    RENAMED,
    RETAINED,
)
from cloze.pipeline.corpus.files.intermediate import documents_at
from cloze.pipeline.corpus.options import MinHash, MixtureOptions

Figures = dict[str, Any]  # for `CorpusPlan`, as JSON


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Dropped documents."""

    numbers: I64  # int64 [k], their indices, ascending
    reason: npt.NDArray[np.int8]  # int8 [k], index into REASONS
    of: I64  # int64 [k], index of the kept document
    repeated: RepeatedIds  # kept documents that share their id with another kept one
    unconfirmed: int = 0  # see `Comparison`


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusPlanRequest:
    """Parameters of a plan."""

    shard_bytes: int  # approximate bytes of text per shard
    directory: str  # directory of the plans, see `unit_plans.py`
    keep_dropped: bool  # write the duplicates, too
    minhash: MinHash | None  # minhash, exact and threshold: as in `find_duplicates`
    exact: bool
    threshold: float
    examples: int  # number of example pairs per kind of duplicate
    parts: Sequence[str] = ()  # paths of the intermediate files without endings
    kinds: Sequence[str] = ()  # kind of source of each
    sizes: Sequence[int] = ()  # bytes of text of each
    mix: MixtureOptions | None = None  # mixture of sources or languages; None: keep all

    def compared_columns(self) -> tuple[str, ...]:
        """Return the columns that the rules need."""
        sketch = ["sketch"] if self.minhash is not None and self.threshold else []
        return ("key", "characters", "exact_high", "exact_low", *self.bands(), *sketch)

    def bands(self) -> list[str]:
        """Return the columns of the bands."""
        return [f"band_{band:02d}" for band in range(self.minhash.bands if self.minhash else 0)]


def find_duplicates(
    columns: SignatureColumns,
    texts: Callable[[I64], Sequence[str]],
    minhash: MinHash | None,
    exact: bool,
    threshold: float = 0.0,
    records: Bools | None = None,
) -> Duplicates:
    """Find the duplicates; keep the longest document, and of equally long ones the smallest key.

    Pages of one id are versions of a page: all but one are dropped as `duplicate_id`. Ids of
    records come from a column that the user may have chosen wrongly: their texts decide.

    Args:
        columns: signatures of the documents, with ADDRESS.
        texts: returns the texts of documents, by their index in the columns.
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
    unconfirmed = 0

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
            compare = Comparison(
                lambda ranks: sketches[by_rank[ranks]],
                lambda ranks: texts(by_rank[ranks]),
                threshold,
                minhash.ngram,
            )
            label = verified_duplicates(
                lambda band: columns.ranked(f"band_{band:02d}", by_rank),
                minhash.bands,
                alive,
                compare,
            )
            unconfirmed = compare.unconfirmed
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
    return Duplicates(
        by_rank[dropped], reason[dropped], by_rank[of[dropped]], repeated, unconfirmed
    )


def _by_rank(columns: SignatureColumns) -> I64:
    """Return the order of the documents, int64 [n]: longest first, then by key, then as read."""
    order = np.argsort(columns.load("key"), kind="stable")
    shorter = np.iinfo(np.uint32).max - columns.load("characters").astype(np.uint32, copy=False)
    return order[np.argsort(shorter[order], kind="stable")]


def document_texts(
    columns: SignatureColumns, parts: Sequence[str]
) -> Callable[[I64], Sequence[str]]:
    """Return a function that reads the texts of documents, by their index in the columns."""
    address = [columns.mapped(name) for name in ("part", "batch", "row")]

    def read(numbers: I64) -> list[str]:
        places = [column[numbers] for column in address]
        documents = documents_at(parts, *places, names=["sentences"])
        return [" ".join(each["sentences"]) for each in documents]

    return read


def decide(columns: SignatureColumns, request: CorpusPlanRequest) -> tuple[pa.Table, Figures]:
    """Apply the rules to documents, of which no other document is a duplicate.

    Returns:
        DECISIONS, and figures for `CorpusPlan` as JSON.
    """
    part = columns.mapped("part").astype(np.int32, copy=False)
    found = find_duplicates(
        columns,
        document_texts(columns, request.parts),
        request.minhash,
        request.exact,
        request.threshold,
        are_records(request.kinds, part),
    )
    number, key = columns.mapped("number"), columns.mapped("key")
    duplicate, own_key = number[found.numbers], key[found.numbers]
    renamed = found.repeated
    zeros = np.zeros_like(found.numbers)
    rows: list[tuple[npt.NDArray[Any], ...]] = [
        (duplicate, found.reason.astype(np.int64), own_key, duplicate, zeros)
    ]
    if request.keep_dropped:
        rows.append((number[found.of], zeros + RETAINED, own_key, duplicate, zeros))
    own = renamed.numbers
    rows.append((number[own], np.full_like(own, RENAMED), key[own], number[own], renamed.copies))
    table = pa.table(
        [
            pa.array(np.concatenate(each), kind)
            for each, kind in zip(zip(*rows, strict=True), DECISIONS.types, strict=True)
        ],
        schema=DECISIONS,
    )
    return table, _figures(columns, found, request)


def _figures(columns: SignatureColumns, found: Duplicates, request: CorpusPlanRequest) -> Figures:
    names = sorted(set(request.kinds))
    kind = np.array([names.index(kind) for kind in request.kinds], np.int64)
    part = columns.mapped("part")
    of_duplicate, of_original = (kind[part[numbers]] for numbers in (found.numbers, found.of))
    combined = (of_duplicate * len(names) + of_original) * len(REASONS) + found.reason
    pairs = []
    for value, count in zip(*np.unique(combined, return_counts=True), strict=True):
        rest, why = divmod(int(value), len(REASONS))
        duplicate, original = divmod(rest, len(names))
        pairs.append((names[duplicate], names[original], REASONS[why], int(count)))
    sizes = np.unique(found.of, return_counts=True)[1]
    return {
        "pairs": pairs,
        "groups": int(sizes.size),
        "renamed": int(found.repeated.numbers.size),
        "largest": int(sizes.max(initial=0)),
        "unconfirmed": found.unconfirmed,
        "examples": _examples(columns, found, request.examples),
    }


def _examples(columns: SignatureColumns, found: Duplicates, most: int) -> list[Any]:
    """Return (key, reason, two positions) of pairs: the duplicates with the smallest keys."""
    address = [columns.mapped(name) for name in ("part", "batch", "row")]
    key = columns.mapped("key")[found.numbers]
    examples = []
    for why in (NEAR, EXACT):
        rows = np.flatnonzero(found.reason == why)
        for row in rows[np.argsort(key[rows], kind="stable")[:most]].tolist():
            positions = (
                [int(column[side[row]]) for column in address] for side in (found.numbers, found.of)
            )
            examples.append((int(key[row]), REASONS[why], *positions))
    return examples


@contextmanager
def local_columns(path: str) -> Iterator[SignatureColumns]:
    """Give columns in a temporary directory, in the directory `path` if that is local."""
    storage.make_dirs(path)
    parent = storage.filesystem(path)[1] if storage.is_local(path) else None
    with tempfile.TemporaryDirectory(prefix="cloze-plan-", dir=parent) as directory:
        yield SignatureColumns(directory)
