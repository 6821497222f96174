"""Corpus stage: the components of shared bands, as `dedup.duplicates.unite` makes them: hooks, and jumps until all trees are stars.

A document's `of` is the rank of the first of its group, as far as that is known. `Hook`: of each band's value the groups of all who have it
become one: the first document of each is told the first of them all. `Jump`: everybody follows the one that it follows. Hooks and jumps
are those of Shiloach and Vishkin ("An O(log n) parallel connectivity algorithm", 1982), with the minimum as the rule of who wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.corpus.dedup.plan import KEPT, NEAR
from pipeline.corpus.dedup.shuffled.ranges import Range, States
from pipeline.corpus.dedup.shuffled.records import letters, opened, packed, position_of, range_of, ranks_of, slice_of

_LABELLED = np.dtype([("value", "<u8"), ("label", "<u8")])
_FOLLOWS = np.dtype([("position", "<u4"), ("first", "<u8")])
_POSITION = np.dtype("<u4")


@dataclass(frozen=True, kw_only=True)
class Hook:
    """An `Exchange` of ranges.

    Attributes:
        before, after: steps; documents that are no doubles and no exact duplicates take part.
        bands: of a signature.
        slices: into how many buckets a band's values are shared out.
    """

    directory: str
    before: str
    after: str
    bands: int
    slices: int

    def ask(self, block: int) -> Iterator[tuple[int, bytes]]:
        state, documents = States(self.directory).load(self.before, block), Range(self.directory, block)
        alive = np.flatnonzero((state["reason"] == KEPT) | (state["reason"] == NEAR))
        for band in range(self.bands):
            pairs = packed(_LABELLED, value=documents.column(f"band_{band:02d}")[alive], label=state["of"][alive])
            pairs = np.unique(pairs)
            yield from letters(band * self.slices + slice_of(pairs["value"], self.slices), pairs, block)

    def match(self, bucket: int, messages: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        _, pairs = opened(messages, _LABELLED)
        order = np.lexsort((pairs["label"], pairs["value"]))
        value, label = pairs["value"][order], pairs["label"][order]
        opens = np.ones(order.size, dtype=bool)
        opens[1:] = value[1:] != value[:-1]
        first = label[opens][np.cumsum(opens) - 1]
        apart = label != first
        label, first = label[apart], first[apart]
        hooks = packed(_FOLLOWS, position=position_of(label), first=first)
        yield from letters(range_of(label), hooks, bucket)

    def settle(self, block: int, answers: Iterable[bytes]) -> dict[str, Any]:
        state = States(self.directory).load(self.before, block)
        _, hooks = opened(answers, _FOLLOWS)
        np.minimum.at(state["of"], hooks["position"].astype(np.int64), hooks["first"])
        _save(self.directory, self.after, block, state)
        return {"moved": int(hooks.size)}


@dataclass(frozen=True, kw_only=True)
class Jump:
    """Everybody follows the one that it follows; an `Exchange` of ranges, whose buckets are the ranges of those that are asked."""

    directory: str
    before: str
    after: str

    def ask(self, block: int) -> Iterator[tuple[int, bytes]]:
        of = States(self.directory).load(self.before, block)["of"]
        asked = np.unique(of[of != ranks_of(block, np.arange(of.size))])
        yield from letters(range_of(asked), position_of(asked).astype(_POSITION), block)

    def match(self, bucket: int, messages: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        senders, positions = opened(messages, _POSITION)
        of = States(self.directory).load(self.before, bucket)["of"][positions]
        moved = of != ranks_of(bucket, positions)
        yield from letters(senders[moved], packed(_FOLLOWS, position=positions[moved], first=of[moved]), bucket)

    def settle(self, block: int, answers: Iterable[bytes]) -> dict[str, Any]:
        state = States(self.directory).load(self.before, block)
        senders, told = opened(answers, _FOLLOWS)
        before = told["position"].astype(np.uint64) | (senders.astype(np.uint64) << np.uint64(32))
        order = np.argsort(before)
        of, moved = state["of"], 0
        if order.size:
            at = order[np.minimum(np.searchsorted(before, of, sorter=order), order.size - 1)]
            found = (before[at] == of) & (of != ranks_of(block, np.arange(of.size)))
            of[found] = told["first"][at[found]]
            moved = int(found.sum())
        _save(self.directory, self.after, block, state)
        return {"moved": moved}


def _save(directory: str, step: str, block: int, state: dict[str, Any]) -> None:
    """The state, in which whoever follows another by its bands is a near duplicate."""
    reason, of = state["reason"], state["of"]
    reason[(reason == KEPT) & (of != ranks_of(block, np.arange(of.size)))] = NEAR
    States(directory).save(step, block, reason=reason, of=of)
