"""Corpus stage: the components of shared bands, as `dedup.duplicates.unite` makes them: hooks, and jumps until all trees are stars.

A document's `of` is the rank of the first of its group, as far as that is known. `Hook`: of each band's value the groups of all who have it
become one: the first document of each is told the first of them all. A block sends of each value the first group that it knows, and
tells its other groups of that one directly. `Jump`: everybody follows the one that it follows. Hooks and jumps
are those of Shiloach and Vishkin ("An O(log n) parallel connectivity algorithm", 1982), with the minimum as the rule of who wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.corpus.dedup.plan import KEPT, NEAR
from pipeline.corpus.dedup.shuffled.ranges import ByBands, Range, States
from pipeline.corpus.dedup.shuffled.records import Array, letters, opened, packed, position_of, range_of, ranks_of, slice_of

_LABELLED = np.dtype([("value", "<u8"), ("label", "<u8")])
_HOOKED = np.dtype([("label", "<u8"), ("first", "<u8")])
_FOLLOWS = np.dtype([("position", "<u4"), ("first", "<u8")])
_POSITION = np.dtype("<u4")


class Hook(ByBands):
    """An `Exchange` of ranges; documents that are no doubles and no exact duplicates take part."""

    @property
    def _buckets(self) -> int:
        """Of values; the buckets behind these are the ranges', and pass hooks on."""
        return self.bands * self.slices

    def ask(self, block: int) -> Iterator[tuple[int, bytes]]:
        state, documents = States(self.directory).load(self.before, block), Range(self.directory, block)
        alive = np.flatnonzero((state["reason"] == KEPT) | (state["reason"] == NEAR))
        hooks = []
        for band in range(self.bands):
            pairs = np.unique(packed(_LABELLED, value=documents.column(f"band_{band:02d}")[alive], label=state["of"][alive]))
            opens, hooked = _hooked(pairs)
            hooks.append(hooked)
            firsts = pairs[opens]
            yield from letters(band * self.slices + slice_of(firsts["value"], self.slices), firsts, block)
        for owner, message in _to_owners(np.unique(np.concatenate(hooks))):
            yield self._buckets + owner, message

    def match(self, bucket: int, messages: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        if bucket < self._buckets:
            _, pairs = opened(messages, _LABELLED)
            yield from _to_owners(_hooked(pairs[np.lexsort((pairs["label"], pairs["value"]))])[1])
            return
        _, hooks = opened(messages, _FOLLOWS)
        hooks = hooks[np.lexsort((hooks["first"], hooks["position"]))]
        _, first = np.unique(hooks["position"], return_index=True)
        yield from letters(np.full(first.size, bucket - self._buckets), hooks[first], bucket)

    def settle(self, block: int, answers: Iterable[bytes]) -> dict[str, Any]:
        state = States(self.directory).load(self.before, block)
        _, hooks = opened(answers, _FOLLOWS)
        np.minimum.at(state["of"], hooks["position"].astype(np.int64), hooks["first"])
        _save(self.directory, self.after, block, state)
        return {"moved": int(hooks.size)}


def _hooked(pairs: Array) -> tuple[Array, Array]:
    """Of pairs in order: which are the first of their value, and (label, first label of its value) where these differ."""
    opens = np.ones(pairs.size, dtype=bool)
    opens[1:] = pairs["value"][1:] != pairs["value"][:-1]
    first = pairs["label"][opens][np.cumsum(opens) - 1]
    apart = pairs["label"] != first
    return opens, packed(_HOOKED, label=pairs["label"][apart], first=first[apart])


def _to_owners(hooks: Array) -> Iterator[tuple[int, bytes]]:
    """Messages to the ranges of the labels."""
    label = hooks["label"]
    yield from letters(range_of(label), packed(_FOLLOWS, position=position_of(label), first=hooks["first"]), 0)


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
