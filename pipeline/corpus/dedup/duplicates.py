"""Corpus stage: which documents are duplicates of which, from columns of hashes; a column at a time.

Documents are numbered by rank: of a group of duplicates the one of the lowest number stays. All arrays are flat, about 40
bytes a document at the peak, so that seven million documents (the English Wikipedia) take some 300 MB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from pipeline.core import random_keys
from pipeline.corpus.dedup.signatures import U8, similarity

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_PAIRS = 1 << 16  # whose sketches are compared at a time
ROUNDS = 1000  # after which what is undecided stays
_HELD = 1 << 20  # undecided documents whose bands are all held at once


def repeated(column: random_keys.U64, alive: Bools | None = None) -> tuple[I64, I64]:
    """The documents whose value an earlier document has, too.

    Args:
        column: uint64 [n], a value for each document.
        alive: bool [n], which documents are looked at; all by default.

    Returns:
        (later, first), two arrays int64 [k]: the numbers of those documents, and for each the earliest document of its value.
    """
    chosen = None if alive is None or alive.all() else np.flatnonzero(alive)
    values = column if chosen is None else column[chosen]
    order = np.argsort(values, kind="stable")
    later, first = _tails(values[order], order)
    return (later, first) if chosen is None else (chosen[later], chosen[first])


def _tails(values: random_keys.U64, order: I64) -> tuple[I64, I64]:
    """From sorted values and whose they are: all but the first of each run, and the first of their run."""
    same = np.flatnonzero(values[1:] == values[:-1]) + 1
    if not same.size:
        return order[:0], order[:0]
    opens = np.ones(same.size, dtype=bool)  # the first of `same` in its run
    opens[1:] = same[1:] != same[:-1] + 1
    heads = same[opens] - 1
    return order[same], order[heads[np.cumsum(opens) - 1]]


def exact_duplicates(high: random_keys.U64, low: random_keys.U64, alive: Bools) -> tuple[I64, I64]:
    """As `repeated`, for values of 128 bits in two columns."""
    later, first = repeated(high, alive)
    if not later.size:
        return later, first
    members = np.unique(np.concatenate((later, first)))  # of runs; here the lower half decides
    order = np.lexsort((members, low[members], high[members]))
    sorted_high, sorted_low = high[members][order], low[members][order]
    same = (sorted_high[1:] == sorted_high[:-1]) & (sorted_low[1:] == sorted_low[:-1])
    group = np.concatenate(([0], np.cumsum(~same))).astype(np.uint64)
    return _tails(group, members[order])


def unite(label: I32, left: I64, right: I64) -> None:
    """Join the groups of `left` and `right` in place.

    Args:
        label: int32 [n]: for each document the first of its group; a first one has itself.
        left, right: int64 [links].
    """
    while True:
        one, two = label[left], label[right]
        apart = one != two
        if not apart.any():
            return
        left, right, one, two = left[apart], right[apart], one[apart], two[apart]
        np.minimum.at(label, np.maximum(one, two), np.minimum(one, two))
        while not np.array_equal(label, shorter := label[label]):
            label[:] = shorter


def linked_duplicates(bands: Iterable[random_keys.U64], alive: Bools) -> I32:
    """int32 [n]: for each document the first of the group of near duplicates that it is in.

    Duplicates of duplicates are duplicates: a group is a connected component of shared bands, as in datatrove.

    Args:
        bands: uint64 [n] each, one at a time.
        alive: bool [n], who is looked at.
    """
    label = np.arange(alive.size, dtype=np.int32)
    for column in bands:
        later, first = repeated(column, alive)
        unite(label, later, first)
    return label


def similar_duplicates(
    band: Callable[[int], random_keys.U64],
    bands: int,
    alive: Bools,
    sketches: Callable[[I64], U8],
    threshold: float,
    rounds: int = ROUNDS,
) -> I32:
    """int32 [n]: for each document an earlier one that stays and is like it; itself if it stays.

    A document goes if it shares a band with one of lower number that stays, and the estimated similarity of the two is at
    least `threshold`. So nothing goes for being a duplicate of a duplicate of something else. Those that nobody undecided comes before, in any of their
    bands, stay; those like one of them go; the rest is looked at again, round by round.

    Args:
        band: gives uint64 [n], the hashes of a band.
        bands: how many there are.
        alive: bool [n], who is looked at.
        sketches: of the documents of these numbers: uint8 [k, minima].
        threshold: Jaccard similarity.
        rounds: after so many, what is undecided stays: as many documents that stay have then been compared with each.
    """
    of = np.arange(alive.size, dtype=np.int32)
    waiting = np.flatnonzero(alive)
    held: random_keys.U64 | None = None  # [waiting, bands], once they are few
    for _ in range(rounds):
        shared = np.zeros(waiting.size, dtype=bool)  # a band with anybody
        blocked = np.zeros(waiting.size, dtype=bool)  # a band with one before
        for number in range(bands):
            later, first = repeated(_column(band, number, waiting, of.size) if held is None else held[:, number])
            blocked[later] = shared[later] = shared[first] = True
        if not blocked.any():
            break
        waiting, leads = waiting[shared], ~blocked[shared]
        if held is not None:
            held = held[shared]
        elif waiting.size <= _HELD:
            held = np.stack([_column(band, number, waiting, of.size) for number in range(bands)], axis=1)
        leader = np.full(waiting.size, waiting.size, dtype=np.int64)
        for number in range(bands):
            later, first = repeated(_column(band, number, waiting, of.size) if held is None else held[:, number])
            chosen = leads[first] & (leader[later] != first)
            later, first = later[chosen], first[chosen]
            alike = _alike(sketches, waiting[later], waiting[first], threshold)
            np.minimum.at(leader, later[alike], first[alike])
        gone = leader < waiting.size
        of[waiting[gone]] = waiting[leader[gone]].astype(np.int32)
        left = ~leads & ~gone
        waiting, held = waiting[left], None if held is None else held[left]
    return of


def _column(band: Callable[[int], random_keys.U64], number: int, waiting: I64, count: int) -> random_keys.U64:
    column = band(number)
    return column if waiting.size == count else column[waiting]


def _alike(sketches: Callable[[I64], U8], left: I64, right: I64, threshold: float) -> Bools:
    """bool [pairs]: whether the estimated similarity is high enough."""
    alike = np.zeros(left.size, dtype=bool)
    for begin in range(0, left.size, _PAIRS):
        pairs = slice(begin, begin + _PAIRS)
        alike[pairs] = similarity(sketches(left[pairs]), sketches(right[pairs])) >= threshold
    return alike
