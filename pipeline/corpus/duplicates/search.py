"""Search for duplicates in columns of hashes, one column at a time.

Documents are numbered by rank: the lowest number of a group of duplicates is kept. The arrays take
about 40 bytes per document at the peak: 300 MB for the seven million documents of the English
Wikipedia.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.core import random_keys
from cloze.core.arrow import file_buffer
from cloze.pipeline.corpus.files.intermediate import IntermediateFile
from cloze.pipeline.corpus.signatures import U8, margin, similarity

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_PAIRS = 1 << 12  # pairs of sketches compared at a time: 1 MB, so that they fit in the cache
_ROUNDS = 8  # a round keeps one document of a bucket; large buckets are then decided in order
_HEAD = 64  # bytes of the sketches that are compared first
_FEW = 64  # kept documents of the smallest buckets, compared first: a copy is mostly among them
_IN_MEMORY_DOCUMENTS = 1 << 20  # undecided documents whose bands all fit in memory


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


def union(label: I32, left: I64, right: I64) -> None:
    """Join the groups of `left` and `right` in place.

    Args:
        label: int32 [n], for each document the first of its group.
        left, right: int64 [links].
    """
    while True:
        left_label, right_label = label[left], label[right]
        apart = left_label != right_label
        if not apart.any():
            return
        left, right = left[apart], right[apart]
        labels = np.stack((left_label[apart], right_label[apart]))
        np.minimum.at(label, labels.max(axis=0), labels.min(axis=0))
        while not np.array_equal(label, shorter := label[label]):
            label[:] = shorter


def component_duplicates(bands: Iterable[random_keys.U64], alive: Bools) -> I32:
    """Return the first document of each document's group of near duplicates, int32 [n].

    A group is a connected component of shared bands, as in datatrove: duplicates of duplicates
    count as duplicates.

    Args:
        bands: columns, uint64 [n] each.
        alive: bool [n], documents to consider.
    """
    label = np.arange(alive.size, dtype=np.int32)
    for column in bands:
        later, first = later_occurrences(column, alive)
        union(label, later, first)
    return label


def verified_duplicates(
    band: Callable[[int], random_keys.U64],
    bands: int,
    alive: Bools,
    sketches: Callable[[I64], U8],
    threshold: float,
) -> I32:
    """Return for each document an earlier similar one that is kept, or itself if kept; int32 [n].

    A document is dropped if it shares a band with a kept document of lower number and their
    estimated similarity is at least `threshold`. Being a duplicate of a dropped document does not
    suffice. Each round keeps the documents that share no band with an earlier undecided one, and
    drops the documents similar to them. What the last round leaves is decided in order.

    Args:
        band: returns the hashes of a band, uint64 [n].
        bands: number of bands.
        alive: bool [n], documents to consider.
        sketches: returns the sketches of the numbered documents, uint8 [k, bytes].
        threshold: Jaccard similarity.
    """
    of = np.arange(alive.size, dtype=np.int32)
    undecided = np.flatnonzero(alive)
    band_columns: random_keys.U64 | None = None  # [undecided, bands], once few remain

    def column(number: int) -> random_keys.U64:
        if band_columns is not None:
            return band_columns[:, number]
        values = band(number)
        return values if undecided.size == of.size else values[undecided]

    for _ in range(_ROUNDS):
        shared = np.zeros(undecided.size, dtype=bool)  # shares a band with any other
        blocked = np.zeros(undecided.size, dtype=bool)  # shares a band with an earlier one
        for number in range(bands):
            later, first = later_occurrences(column(number))
            blocked[later] = shared[later] = shared[first] = True
        if not blocked.any():
            return of
        undecided, leads = undecided[shared], ~blocked[shared]
        if band_columns is not None:
            band_columns = band_columns[shared]
        elif undecided.size <= _IN_MEMORY_DOCUMENTS:
            band_columns = np.stack(list(map(column, range(bands))), axis=1)
        leader = np.full(undecided.size, undecided.size, dtype=np.int64)
        for number in range(bands):
            later, first = later_occurrences(column(number))
            selected = leads[first] & (leader[later] != first)
            later, first = later[selected], first[selected]
            alike = _alike(sketches, undecided[later], undecided[first], threshold)
            np.minimum.at(leader, later[alike], first[alike])
        dropped = leader < undecided.size
        of[undecided[dropped]] = undecided[leader[dropped]].astype(np.int32)
        remaining = ~leads & ~dropped
        undecided = undecided[remaining]
        band_columns = None if band_columns is None else band_columns[remaining]
    begins = [_members(column(number)) for number in range(bands)]
    _decide_in_order(of, undecided, begins, sketches, threshold)
    return of


def _members(column: random_keys.U64) -> I64:
    """Return for each document where its bucket begins, if documents are sorted by bucket."""
    _, bucket, sizes = np.unique(column, return_inverse=True, return_counts=True)
    begins: I64 = (np.cumsum(sizes) - sizes)[bucket]
    return begins


def _decide_in_order(
    of: I32, undecided: I64, begins: Sequence[I64], sketches: Callable[[I64], U8], threshold: float
) -> None:
    """Decide the documents one by one, each by the kept ones in its buckets; write into `of`.

    Args:
        begins: result of `_members` of each band.
    """
    if not undecided.size:
        return
    blocks = np.split(undecided, range(_PAIRS, undecided.size, _PAIRS))
    heads = np.concatenate([sketches(block)[:, :_HEAD] for block in blocks])
    rough = threshold - margin(threshold, heads.shape[1])
    places = np.stack(begins, axis=1) + undecided.size * np.arange(len(begins))
    kept = np.empty(places.size, dtype=np.int32)  # members of each bucket, from its first place on
    sizes = np.zeros(places.size, dtype=np.int32)  # number of them, at a bucket's first place
    for row, own in enumerate(places):
        buckets = sorted(zip(sizes[own].tolist(), own.tolist(), strict=True))
        members = np.concatenate([kept[begin : begin + size] for size, begin in buckets])
        many = np.sort(members[_FEW:])
        for some in (members[:_FEW], many[np.diff(many, prepend=-1) > 0]):
            some = some[_alike(lambda rows: heads[rows], np.array([row]), some, rough)]
            alike = _alike(sketches, undecided[row : row + 1], undecided[some], threshold)
            if alike.any():
                of[undecided[row]] = undecided[some[alike].min()]
                break
        else:
            kept[own + sizes[own]] = row
            sizes[own] += 1


def _alike(sketches: Callable[[I64], U8], left: I64, right: I64, threshold: float) -> Bools:
    """Return which pairs reach the threshold of estimated similarity, bool [pairs].

    A single document at the left is compared with each at the right.
    """
    alike = np.zeros(right.size, dtype=bool)
    for begin in range(0, right.size, _PAIRS):
        pairs = slice(begin, begin + _PAIRS)
        one = left if left.size == 1 else left[pairs]
        alike[pairs] = similarity(sketches(one), sketches(right[pairs])) >= threshold
    return alike


class SignatureColumns:
    """Signatures of all documents, in one flat file per column on the local disk.

    Attributes:
        directory: directory of the files.
        begins: int64 [parts + 1], number of the first document of each intermediate file.
        batch_begins: int64 [batches], number of the first document of each record batch.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.begins: I64 = np.zeros(1, dtype=np.int64)
        self.batch_begins: I64 = np.zeros(0, dtype=np.int64)
        self._batch_numbers: I32 = np.zeros(0, dtype=np.int32)
        self._types: dict[str, np.dtype[Any]] = {}

    @property
    def count(self) -> int:
        return int(self.begins[-1])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._types)

    def gather(
        self,
        paths: Sequence[str],
        report: Callable[[int], None] = lambda _: None,
        names: Sequence[str] | None = None,
    ) -> None:
        """Copy the files of signatures at `paths` into columns, in order.

        Args:
            report: called with the number of files read.
            names: columns to copy. Default: all.
        """
        files: dict[str, Any] = {}
        begins, batch_begins, batch_numbers, total = [0], [], [], 0
        try:
            for number, path in enumerate(paths):
                buffer = file_buffer(path) if names is None else None
                with IntermediateFile(path, names, buffer) as part:
                    for batch_number in range(part.batches):
                        batch = part.batch(batch_number)
                        batch_begins.append(total)
                        batch_numbers.append(batch_number)
                        total += batch.num_rows
                        for name in batch.schema.names:
                            values = flat(batch[name])
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
        self.batch_begins = np.array(batch_begins, dtype=np.int64)
        self._batch_numbers = np.array(batch_numbers, dtype=np.int32)

    def load(self, name: str) -> npt.NDArray[Any]:
        """Load a column."""
        if not self.count:
            return np.zeros(0, dtype=np.uint64)
        kind = self._types[name]
        return np.fromfile(os.path.join(self.directory, name), dtype=kind)

    def ranked(self, name: str, by_rank: I64) -> npt.NDArray[Any]:
        """Load a column in the order of `by_rank`; cache it on disk in that order."""
        path = os.path.join(self.directory, f"ranked_{name}")
        if os.path.exists(path):
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

    def where(self, numbers: I64) -> tuple[I32, I32, I32]:
        """Return file number, batch and row of the numbered documents."""
        batch = np.searchsorted(self.batch_begins, numbers, side="right") - 1
        part = np.searchsorted(self.begins, numbers, side="right") - 1
        row = numbers - self.batch_begins[batch]
        return part.astype(np.int32), self._batch_numbers[batch], row.astype(np.int32)


def flat(column: pa.Array) -> npt.NDArray[Any]:
    """Return the values as an array [n], or uint8 [n, width] for fixed-size binary."""
    if pa.types.is_fixed_size_binary(column.type):
        width = column.type.byte_width
        data = np.frombuffer(column.buffers()[1], dtype=np.uint8)
        return data[column.offset * width : (column.offset + len(column)) * width].reshape(
            -1, width
        )
    return np.asarray(column.to_numpy(zero_copy_only=False))
