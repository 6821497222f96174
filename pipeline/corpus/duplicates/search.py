"""Search for duplicates in columns of hashes, one column at a time.

Documents are numbered by rank: the lowest number of a group of duplicates is kept. The arrays take
about 40 bytes per document at the peak: 300 MB for the seven million documents of the English
Wikipedia.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.core import random_keys
from cloze.core.accounts import open_unlinked
from cloze.core.ragged import I64
from cloze.pipeline.corpus.options import DEFAULT
from cloze.pipeline.corpus.signatures import (
    SKETCH_BYTES,
    U8,
    U32,
    distinct_shingles,
    margin,
    overlap,
    similarity,
)

I32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

_PAIRS = 1 << 12  # pairs of sketches compared at a time: 1 MB, so that they fit in the cache
_TEXTS = 1 << 8  # pairs of texts compared at a time
_HEAD = 64  # bytes of the sketches that are compared first
_FEW = 64  # kept documents of the smallest buckets, compared first: a copy is mostly among them
_MOST = 1 << 15  # kept documents of the smallest buckets that a document is compared with
_CONFIRMED = 8  # of them, those compared by their texts; the most similar by their sketches
_SHINGLES = 1 << 24  # hashes of n-grams held: 64 MB


def later_occurrences(column: random_keys.U64, alive: Bools | None = None) -> tuple[I64, I64]:
    """Return the documents whose value an earlier document also has.

    Args:
        column: uint64 [n], a value per document.
        alive: bool [n], documents to consider; default: all.

    Returns:
        (later, first), int64 [k] each: numbers of the later documents, and for each the first
        document with its value.
    """
    selected = None if alive is None or alive.all() else np.flatnonzero(alive)
    values = column if selected is None else column[selected]
    order = np.argsort(values, kind="stable")
    later, first = _tails(values[order], order)
    return (later, first) if selected is None else (selected[later], selected[first])


def _tails(values: random_keys.U64, order: I64) -> tuple[I64, I64]:
    """Return all but the first member of each run of equal sorted values, and the first one."""
    same = np.flatnonzero(values[1:] == values[:-1]) + 1
    if not same.size:
        return order[:0], order[:0]
    opens = np.ones(same.size, dtype=bool)  # the first of `same` in its run
    opens[1:] = same[1:] != same[:-1] + 1
    heads = same[opens] - 1
    return order[same], order[heads[np.cumsum(opens) - 1]]


def exact_duplicates(high: random_keys.U64, low: random_keys.U64, alive: Bools) -> tuple[I64, I64]:
    """Return (later, first) as `later_occurrences`, for 128-bit values in two columns."""
    later, first = later_occurrences(high, alive)
    if not later.size:
        return later, first
    members = np.unique(np.concatenate((later, first)))  # of runs; the lower half decides
    order = np.lexsort((members, low[members], high[members]))
    sorted_high, sorted_low = high[members][order], low[members][order]
    same = (sorted_high[1:] == sorted_high[:-1]) & (sorted_low[1:] == sorted_low[:-1])
    group = np.concatenate(([0], np.cumsum(~same))).astype(np.uint64)
    return _tails(group, members[order])


def component_duplicates(bands: Iterable[random_keys.U64], alive: Bools) -> I32:
    """Return the first document of each document's group of near duplicates, int32 [n].

    A group is a connected component of shared bands, as in datatrove: duplicates of duplicates
    count as duplicates.

    Args:
        bands: columns, uint64 [n] each.
        alive: bool [n], documents to consider.
    """
    from scipy.sparse import coo_array  # by default, each pair is verified instead
    from scipy.sparse.csgraph import connected_components

    links = [later_occurrences(column, alive) for column in bands]
    later, first = (np.concatenate(side) for side in zip(*links, strict=True))
    ones = np.ones(later.size, dtype=bool)
    graph = coo_array((ones, (later, first)), shape=(alive.size, alive.size))
    group = connected_components(graph, directed=False)[1]
    label: I32 = np.unique(group, return_index=True)[1].astype(np.int32)[group]
    return label


def _estimates(sketches: Callable[[I64], U8], left: I64, right: I64) -> Floats:
    """Return the estimated similarity of each pair, float64 [pairs].

    A single document at the left is compared with each at the right.
    """
    found = np.zeros(right.size)
    for begin in range(0, right.size, _PAIRS):
        pairs = slice(begin, begin + _PAIRS)
        one = left if left.size == 1 else left[pairs]
        found[pairs] = similarity(sketches(one), sketches(right[pairs]))
    return found


@dataclass
class Comparison:
    """Tells which pairs reach a similarity by their sketches, near the threshold by their texts."""

    # returns the sketches of the numbered documents, uint8 [k, SKETCH_BYTES]
    sketches: Callable[[I64], U8]
    texts: Callable[[I64], Sequence[str]]  # returns their texts
    threshold: float  # Jaccard similarity
    ngram: int = DEFAULT.ngram  # words per n-gram
    unconfirmed: int = 0  # documents kept because not all pairs near the threshold were confirmed
    _known: dict[int, U32] = field(default_factory=dict)  # n-grams of documents
    _size: int = 0  # of them

    def above(self, left: I64, right: I64) -> Floats:
        """Return how far estimates are above the threshold, in units of their largest error."""
        above = _estimates(self.sketches, left, right) - self.threshold
        return above / max(margin(self.threshold, SKETCH_BYTES), 1e-9)

    def confirmed(self, left: I64, right: I64) -> Bools:
        """Return which pairs reach the threshold by the n-grams of their texts, bool [pairs]."""
        alike = np.zeros(right.size, dtype=bool)
        for begin in range(0, right.size, _TEXTS):
            pairs = np.stack((left, right))[:, begin : begin + _TEXTS]
            if self._size > _SHINGLES:
                self._known.clear()
                self._size = 0
            missing = np.array(sorted({*pairs.ravel().tolist()} - self._known.keys()), np.int64)
            for number, text in zip(missing.tolist(), self.texts(missing), strict=True):
                self._known[number] = distinct_shingles(text, self.ngram)
                self._size += self._known[number].size
            alike[begin : begin + _TEXTS] = [
                overlap(self._known[one], self._known[other]) >= self.threshold
                for one, other in pairs.T.tolist()
            ]
        return alike


def verified_duplicates(
    band: Callable[[int], random_keys.U64], bands: int, alive: Bools, compare: Comparison
) -> I32:
    """Return for each document an earlier similar one that is kept, or itself if kept; int32 [n].

    A document is dropped if it shares a band with a kept document of lower number and is similar
    to it. Being a duplicate of a dropped document does not suffice. First all documents at once are
    compared with those that share no band with an earlier one. What is left is decided in order.

    Args:
        band: returns the hashes of a band, uint64 [n].
        alive: bool [n], documents to consider.
    """
    of = np.arange(alive.size, dtype=np.int32)
    blocked = np.zeros(alive.size, dtype=bool)  # shares a band with an earlier one
    for number in range(bands):
        blocked[later_occurrences(band(number), alive)[0]] = True
    leader = np.where(blocked, alive.size, of)
    near: list[I64] = []  # pairs near the threshold: `first` * documents + `later`
    for number in range(bands):
        later, first = later_occurrences(band(number), alive)
        selected = ~blocked[first] & (leader[later] != first)
        later, first = later[selected], first[selected]
        above = compare.above(later, first)
        np.minimum.at(leader, later[above >= 1], first[above >= 1])
        near.append((first * alive.size + later)[np.abs(above) < 1])
    first, later = np.divmod(np.unique(np.concatenate(near)), max(1, alive.size))
    missing = leader[later] == alive.size
    first, later = first[missing], later[missing]
    alike = compare.confirmed(later, first)
    np.minimum.at(leader, later[alike], first[alike])
    undecided = np.flatnonzero(leader == alive.size)
    of[blocked] = leader[blocked]
    of[undecided] = undecided
    begins = [_members(band(number)[undecided]) for number in range(bands)]
    _decide_in_order(of, undecided, begins, compare)
    return of


def _members(column: random_keys.U64) -> I64:
    """Return for each document where its bucket begins, if documents are sorted by bucket."""
    _, bucket, sizes = np.unique(column, return_inverse=True, return_counts=True)
    begins: I64 = (np.cumsum(sizes) - sizes)[bucket]
    return begins


def _decide_in_order(of: I32, undecided: I64, begins: Sequence[I64], compare: Comparison) -> None:
    """Decide the documents one by one, each by the kept ones in its buckets; write into `of`."""
    if not undecided.size:
        return
    blocks = np.split(undecided, range(_PAIRS, undecided.size, _PAIRS))
    heads = np.concatenate([compare.sketches(block)[:, :_HEAD] for block in blocks])
    filled = np.count_nonzero(np.stack((heads & 15, heads >> 4)), axis=(0, 2))  # bins of a head
    places = np.stack(begins, axis=1) + undecided.size * np.arange(len(begins))
    kept = np.empty(places.size, dtype=np.int32)  # members of each bucket, from its first place on
    sizes = np.zeros(places.size, dtype=np.int32)  # number of them, at a bucket's first place
    for row, own in enumerate(places):
        buckets = sorted(zip(sizes[own].tolist(), own.tolist(), strict=True))
        members = np.concatenate([kept[begin : begin + size] for size, begin in buckets])
        many = np.sort(members[_FEW:_MOST])
        rough = compare.threshold - margin(compare.threshold, max(1, filled[row]) / 2)
        found, rows = np.zeros(0), members[:0]
        for some in (members[:_FEW], many[np.diff(many, prepend=-1) > 0]):
            some = some[_estimates(lambda at: heads[at], np.array([row]), some) >= rough]
            above = compare.above(undecided[row : row + 1], undecided[some])
            found, rows = np.concatenate((found, above)), np.concatenate((rows, some))
            if (found >= 1).any():
                break
        alike = rows[found >= 1]
        if not alike.size:
            near, at = np.unique(rows[found > -1], return_index=True)
            likest = near[np.argsort(-found[found > -1][at], kind="stable")[:_CONFIRMED]]
            own_number = np.full(likest.size, undecided[row])
            alike = likest[compare.confirmed(own_number, undecided[likest])]
            if not alike.size and (near.size > likest.size or members.size > _MOST):
                compare.unconfirmed += 1
        if alike.size:
            of[undecided[row]] = undecided[alike.min()]
        else:
            kept[own + sizes[own]] = row
            sizes[own] += 1


class SignatureColumns:
    """Signatures of documents, in one flat file per column on the local disk."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.count = 0  # of documents
        self._types: dict[str, np.dtype[Any]] = {}

    def gather(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Copy all columns of record batches, in order."""
        with contextlib.ExitStack() as stack:
            files: dict[str, Any] = {}
            for batch in batches:
                self.count += batch.num_rows
                for name in batch.schema.names:
                    values = flat(batch[name])
                    if name not in files:
                        path = os.path.join(self.directory, name)
                        files[name] = stack.enter_context(open(path, "wb", opener=open_unlinked))
                        self._types[name] = np.dtype((values.dtype, values.shape[1:]))
                    values.tofile(files[name])

    def load(self, name: str) -> npt.NDArray[Any]:
        """Load a column."""
        if not self.count:
            return np.zeros(0, dtype=np.uint64)
        kind = self._types[name]
        return np.fromfile(os.path.join(self.directory, name), dtype=kind)

    def ranked(self, name: str, by_rank: I64) -> npt.NDArray[Any]:
        """Load a column in the order of `by_rank`; cache it on disk in that order."""
        path = os.path.join(self.directory, f"ranked_{name}")
        if self.count and os.path.exists(path):
            return np.fromfile(path, dtype=self._types[name])
        values = self.load(name)
        values = values[by_rank]
        values.tofile(path)
        return values

    def mapped(self, name: str) -> npt.NDArray[Any]:
        """Return a column as a memory map, for access to a few rows or by block."""
        if not self.count:
            return np.zeros(0, dtype=np.uint64)
        kind = self._types[name]
        return np.memmap(
            os.path.join(self.directory, name),
            dtype=kind.base,
            mode="r",
            shape=(self.count, *kind.shape),
        )


def flat(column: pa.Array) -> npt.NDArray[Any]:
    """Return the values as an array [n], or uint8 [n, width] for fixed-size binary."""
    if pa.types.is_fixed_size_binary(column.type):
        width = column.type.byte_width
        data = np.frombuffer(column.buffers()[1], dtype=np.uint8)
        return data[column.offset * width : (column.offset + len(column)) * width].reshape(
            -1, width
        )
    return np.asarray(column.to_numpy(zero_copy_only=False))
