"""Corpus stage: for each document of a range, the first document of all that has the same value, column by column.

A block sends of each value the first document that it has (12 bytes, or 20), whatever its number of others: so a value that a million
documents share is one record a block. A bucket links these to the first among them, and each block's others follow their own first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.core.random_keys import U64
from pipeline.corpus.dedup.plan import DUPLICATE_ID, EXACT, KEPT
from pipeline.corpus.dedup.shuffled.ranges import Range, States
from pipeline.corpus.dedup.shuffled.records import I64, Array, letters, opened, packed, ranks_of, slice_of

ANSWER = np.dtype([("column", "<u4"), ("position", "<u4"), ("first", "<u8")])


@dataclass(frozen=True, slots=True)
class Column:
    """Values of some of a range's documents, and which belong together.

    Attributes:
        at: int64 [k], the positions of these documents, rising.
        group: int64 [k], the number of each one's value.
        heads: int64 [groups], the first of `at` of each group.
        values, lower: uint64 [groups].
    """

    at: I64
    group: I64
    heads: I64
    values: U64
    lower: U64 | None

    @classmethod
    def of(cls, at: I64, values: U64, lower: U64 | None = None) -> Column:
        """Args: values, lower: of each of `at`; documents belong together where both are the same."""
        order = np.argsort(values, kind="stable") if lower is None else np.lexsort((lower, values))
        opens = np.ones(order.size, dtype=bool)
        opens[1:] = values[order][1:] != values[order][:-1]
        if lower is not None:
            opens[1:] |= lower[order][1:] != lower[order][:-1]
        group = np.empty(order.size, dtype=np.int64)
        group[order] = np.cumsum(opens) - 1
        heads = order[opens]
        return cls(at, group, at[heads], values[heads], None if lower is None else lower[heads])


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Finds firsts: what `Firsts` and the rounds of `near` have in common.

    Attributes:
        slices: into how many buckets a column's values are shared out.
        wide: whether values have a lower half.
    """

    slices: int
    wide: bool = False

    @property
    def _kind(self) -> np.dtype[Any]:
        return np.dtype([("value", "<u8"), *([("lower", "<u8")] if self.wide else []), ("position", "<u4")])

    def ask(self, block: int, columns: Iterable[Column]) -> Iterator[tuple[int, bytes]]:
        for number, column in enumerate(columns):
            more = {} if column.lower is None else {"lower": column.lower}
            records = packed(self._kind, value=column.values, position=column.heads, **more)
            yield from letters(number * self.slices + slice_of(column.values, self.slices), records, block)

    def match(self, bucket: int, messages: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        senders, records = opened(messages, self._kind)
        ranks = records["position"].astype(np.uint64) | (senders.astype(np.uint64) << np.uint64(32))
        order = np.lexsort((ranks, *([records["lower"]] if self.wide else []), records["value"]))
        senders, ranks, records = senders[order], ranks[order], records[order]
        opens = np.ones(order.size, dtype=bool)
        opens[1:] = records["value"][1:] != records["value"][:-1]
        if self.wide:
            opens[1:] |= records["lower"][1:] != records["lower"][:-1]
        group = np.cumsum(opens) - 1
        shared = np.bincount(group)[group] > 1
        first = ranks[opens][group]
        column = np.full(order.size, bucket // self.slices)
        answers = packed(ANSWER, column=column[shared], position=records["position"][shared], first=first[shared])
        yield from letters(senders[shared], answers, bucket)

    def settle(self, block: int, columns: Sequence[Column], answers: Iterable[bytes]) -> Iterator[tuple[U64, Array]]:
        """For each column: (uint64 [k], the rank of the first; bool [k], whether anybody else has the value)."""
        _, told = opened(answers, ANSWER)
        for number, column in enumerate(columns):
            first = ranks_of(block, column.heads)
            shared = np.bincount(column.group, minlength=first.size) > 1
            own = told[told["column"] == number]
            by_head = np.argsort(column.heads)
            groups = by_head[np.searchsorted(column.heads, own["position"], sorter=by_head)]
            first[groups] = own["first"]
            shared[groups] = True
            yield first[column.group], shared[column.group]


@dataclass(frozen=True, kw_only=True)
class Firsts:
    """Drops documents whose id, or whose exact hash, an earlier one has, too; an `Exchange` of ranges.

    Attributes:
        why: DUPLICATE_ID or EXACT.
        before: the step whose states are gone on from; empty: there is none, and all documents are looked at.
        after: this step.
    """

    directory: str
    why: int
    before: str
    after: str
    slices: int

    @property
    def _links(self) -> Links:
        return Links(slices=self.slices, wide=self.why == EXACT)

    def ask(self, block: int) -> Iterator[tuple[int, bytes]]:
        yield from self._links.ask(block, [self._column(block, *self._state(block))])

    def match(self, bucket: int, messages: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        yield from self._links.match(bucket, messages)

    def settle(self, block: int, answers: Iterable[bytes]) -> dict[str, Any]:
        reason, of = self._state(block)
        column = self._column(block, reason, of)
        first, _ = next(self._links.settle(block, [column], answers))
        later = first != ranks_of(block, column.at)
        reason[column.at[later]] = self.why
        of[column.at[later]] = first[later]
        States(self.directory).save(self.after, block, reason=reason, of=of)
        return {"dropped": int(later.sum()), "left": int(np.count_nonzero(reason == KEPT))}

    def _state(self, block: int) -> tuple[Array, U64]:
        if self.before:
            state = States(self.directory).load(self.before, block)
            return state["reason"], state["of"]
        count = Range(self.directory, block).count
        return np.zeros(count, np.int8), ranks_of(block, np.arange(count))

    def _column(self, block: int, reason: Array, of: U64) -> Column:
        del of
        documents, at = Range(self.directory, block), np.flatnonzero(reason == KEPT)
        if self.why == DUPLICATE_ID:
            return Column.of(at, documents.column("key")[at])
        return Column.of(at, documents.column("exact_high")[at], documents.column("exact_low")[at])
