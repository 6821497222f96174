"""Corpus stage: near duplicates by bands and similarity, a round of `dedup.duplicates.similar_duplicates` in two exchanges of ranges.

`Lead`: of each band's value, the first document that is undecided; who is first in all of its bands leads, and stays. `Follow`: who shares a
band with a leader asks it for its sketch, once a block; those that are like it go, to the first that they are like. Leaders and those
who have nothing in common with anybody undecided are done with; the others are looked at again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.corpus.dedup.plan import KEPT, NEAR
from pipeline.corpus.dedup.shuffled.firsts import Column, Links
from pipeline.corpus.dedup.shuffled.ranges import ByBands, Range, States
from pipeline.corpus.dedup.shuffled.records import Array, letters, opened, packed, position_of, range_of, ranks_of
from pipeline.corpus.dedup.signatures import similarity

_POSITION = np.dtype("<u4")
_PAIRS = 1 << 16  # whose sketches are compared at a time


class Lead(ByBands):
    """An `Exchange` of ranges. Before the first round the states have no `waiting`: all that stay so far are undecided."""

    def ask(self, block: int) -> Iterator[tuple[int, bytes]]:
        _, waiting, open_ = self._state(block)
        yield from Links(slices=self.slices).ask(block, self._columns(block, waiting, open_))

    def match(self, bucket: int, messages: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        yield from Links(slices=self.slices).match(bucket, messages)

    def settle(self, block: int, answers: Iterable[bytes]) -> dict[str, Any]:
        state, waiting, open_ = self._state(block)
        own = ranks_of(block, waiting)
        first, shared = np.tile(own[:, None], (1, self.bands)), np.zeros(open_.shape, dtype=bool)
        columns = list(self._columns(block, waiting, open_))
        for band, found in enumerate(Links(slices=self.slices).settle(block, columns, answers)):
            first[open_[:, band], band], shared[open_[:, band], band] = found
        blocked, with_others = (first != own[:, None]).any(axis=1), shared.any(axis=1)
        left = {"waiting": waiting[with_others], "first": first[with_others], "open": shared[with_others]}
        States(self.directory).save(
            self.after, block, reason=state["reason"], of=state["of"], leads=~blocked[with_others], **left
        )
        return {"blocked": int(blocked.sum()), "waiting": int(with_others.sum())}

    def _state(self, block: int) -> tuple[dict[str, Array], Array, Array]:
        state = States(self.directory).load(self.before, block)
        if "waiting" in state:
            return state, state["waiting"], state["open"]
        waiting = np.flatnonzero(state["reason"] == KEPT)
        return state, waiting, np.ones((waiting.size, self.bands), dtype=bool)

    def _columns(self, block: int, waiting: Array, open_: Array) -> Iterator[Column]:
        documents = Range(self.directory, block)
        for band in range(self.bands):
            at = waiting[open_[:, band]]
            yield Column.of(at, documents.column(f"band_{band:02d}")[at])


@dataclass(frozen=True, kw_only=True)
class Follow:
    """An `Exchange` of ranges; its buckets are the ranges of those that are asked.

    Attributes:
        before, after: steps; `before` is that of `Lead`.
        minima: bytes of a sketch.
        threshold: the similarity from which on a document goes.
    """

    directory: str
    before: str
    after: str
    minima: int
    threshold: float

    @property
    def _kind(self) -> np.dtype[Any]:
        return np.dtype([("first", "<u8"), ("sketch", "u1", (self.minima,))])

    def ask(self, block: int) -> Iterator[tuple[int, bytes]]:
        state = States(self.directory).load(self.before, block)
        followed = ~state["leads"]
        first = np.unique(state["first"][followed][state["open"][followed]])  # its own among them; harmless: it does not lead
        yield from letters(range_of(first), position_of(first).astype(_POSITION), block)

    def match(self, bucket: int, messages: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        senders, positions = opened(messages, _POSITION)
        state, documents = States(self.directory).load(self.before, bucket), Range(self.directory, bucket)
        leads = np.zeros(documents.count, dtype=bool)
        leads[state["waiting"][state["leads"]]] = True
        chosen = leads[positions]
        senders, positions = senders[chosen], positions[chosen].astype(np.int64)
        sketches = documents.column("sketch")
        order = np.argsort(senders, kind="stable")
        for begin in range(0, order.size, _PAIRS):  # of a document that everybody asks for there are as many copies as blocks
            some = order[begin : begin + _PAIRS]
            records = packed(self._kind, first=ranks_of(bucket, positions[some]), sketch=sketches[positions[some]])
            yield from letters(senders[some], records, bucket)

    def settle(self, block: int, answers: Iterable[bytes]) -> dict[str, Any]:
        state, documents = States(self.directory).load(self.before, block), Range(self.directory, block)
        _, leaders = opened(answers, self._kind)
        leaders = leaders[np.argsort(leaders["first"])]
        waiting, first, open_, leads = (state[name] for name in ("waiting", "first", "open", "leads"))
        nobody = np.iinfo(np.uint64).max
        leader = np.full(waiting.size, nobody, dtype=np.uint64)
        sketches = documents.column("sketch") if leaders.size else None
        for band in range(first.shape[1] if leaders.size else 0):
            assert sketches is not None
            at = np.searchsorted(leaders["first"], first[:, band])
            at[at == leaders.size] = 0
            chosen = np.flatnonzero((leaders["first"][at] == first[:, band]) & ~leads & (leader != first[:, band]))
            for begin in range(0, chosen.size, _PAIRS):
                some = chosen[begin : begin + _PAIRS]
                found = similarity(sketches[waiting[some]], leaders["sketch"][at[some]])
                alike = some[found >= self.threshold]
                leader[alike] = np.minimum(leader[alike], first[alike, band])
        gone = leader != nobody
        state["reason"][waiting[gone]] = NEAR
        state["of"][waiting[gone]] = leader[gone]
        left = ~leads & ~gone
        States(self.directory).save(
            self.after, block, reason=state["reason"], of=state["of"], waiting=waiting[left], open=open_[left]
        )
        return {"gone": int(gone.sum()), "waiting": int(left.sum())}
