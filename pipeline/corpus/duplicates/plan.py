"""Second step of the corpus stage: find the duplicates and plan the shards.

It runs in one process, by column: the signatures are copied to one flat file per column on the
local disk; each column is loaded, sorted and released before the next. A document takes about 50
bytes of memory at the peak and 590 bytes of disk, whatever its length. `distributed.py` finds the
duplicates of a larger corpus.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cloze.core import random_keys, storage
from cloze.pipeline.corpus.duplicates.repeated_ids import (
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
from cloze.pipeline.corpus.duplicates.unit_plans import (
    DUPLICATE_ID,
    EXACT,
    NEAR,
    REASONS,
    RETAINED,
    Duplicates,
    UnitPlans,
)
from cloze.pipeline.corpus.mixing import MixtureSelection, language_name, sample_mixture
from cloze.pipeline.corpus.options import MinHash, MixtureOptions
from cloze.pipeline.corpus.signatures import sure_similarity

MOST_SHARDS = 10_000  # with the dropped texts beside them, an artifact has twice as many files


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
        directory: directory of the plans, see `pipeline/corpus/duplicates/unit_plans.py`.
        keep_dropped: write the duplicates, too.
        minhash, exact, threshold: as in `find_duplicates`.
        examples: number of example pairs per kind of duplicate.
        parts: paths of the intermediate files without endings.
        kinds: kind of source of each.
        mix: mixture of sources or languages; None: keep all.
    """

    shard_bytes: int
    directory: str
    keep_dropped: bool
    minhash: MinHash | None
    exact: bool
    threshold: float
    examples: int
    parts: Sequence[str]
    kinds: Sequence[str]
    mix: MixtureOptions | None = None


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
    examples: list[tuple[str, tuple[int, ...], tuple[int, ...]]]
    mixed: list[dict[str, Any]] = field(default_factory=list)


def plan(
    references: Sequence[str],
    request: CorpusPlanRequest,
    report: Callable[[int], None] = lambda _: None,
) -> CorpusPlan:
    """Find the duplicates, and write what becomes of the documents.

    Args:
        references: file of signatures per intermediate file.
        request: parameters of the plan.
        report: called with the number of files read.
    """
    with local_columns(request.directory) as columns:
        columns.gather(references, report)
        records = are_records(request.kinds, np.diff(columns.begins))
        duplicates = find_duplicates(
            columns, request.minhash, request.exact, request.threshold, records
        )
        return write_plan(columns, duplicates, request)


def write_plan(
    columns: SignatureColumns, duplicates: Duplicates, request: CorpusPlanRequest
) -> CorpusPlan:
    """Choose the mixture, and write what becomes of the documents.

    Args:
        columns: `key`, `bytes` and `heldout` of all documents, and for a mixture `words` and
            `language`.
        duplicates: documents to drop.
        request: parameters of the plan.
    """
    key, size, heldout = (columns.mapped(name) for name in ("key", "bytes", "heldout"))
    key = duplicates.repeated.distinct_keys(key)
    retained: Bools = np.ones(columns.count, dtype=bool)
    retained[duplicates.numbers] = False
    figures = _figures(columns, duplicates, request.kinds)
    numbers: I64 | None = None  # of the chosen documents, ascending; None: all kept ones
    copies: I64 | None = None
    if request.mix is not None:
        mixture = _mixed(columns, key, np.flatnonzero(retained), request.mix, request.kinds)
        # a repetition of a renamed document is no copy that another one of its id is
        step = mixture.copies.max(initial=0) + 1
        copies = mixture.copies + duplicates.repeated.copies_of(mixture.numbers) * step
        order = np.argsort(mixture.numbers, kind="stable")
        numbers, copies = mixture.numbers[order], copies[order]
        figures["dropped"] += mixture.dropped
        figures["mixed"] = mixture.groups
    selected: Bools | I64 = retained if numbers is None else numbers
    text_bytes = int(size[selected].sum(dtype=np.int64))
    plans = UnitPlans(request.directory, columns, duplicates, key, request.parts)
    plans.write(retained, numbers, copies, keep_dropped=request.keep_dropped)
    return CorpusPlan(
        shards=min(MOST_SHARDS, max(1, math.ceil(text_bytes / request.shard_bytes))),
        units=plans.count,
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
    """Give columns in a temporary directory, in the directory `path` if that is local."""
    storage.make_dirs(path)
    parent = storage.filesystem(path)[1] if storage.is_local(path) else None
    with tempfile.TemporaryDirectory(prefix="cloze-plan-", dir=parent) as directory:
        yield SignatureColumns(directory)
