"""Corpus stage: who is dropped, told to the blocks that the documents came from.

A block's file has a row a document that is dropped, in the order in which its documents stand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core.arrow import read_arrow, write_arrow
from pipeline.core.random_keys import U64
from pipeline.corpus.dedup.plan import KEPT
from pipeline.corpus.dedup.shuffled.blocks import WHERE, block_file
from pipeline.corpus.dedup.shuffled.ranges import Range, States
from pipeline.corpus.dedup.shuffled.records import I64, Array, letters, opened, packed, position_of, range_of

DROPPED = "dropped"
SCHEMA = pa.schema(
    [
        WHERE,
        pa.field("reason", pa.int8(), nullable=False),
        pa.field("of", pa.uint64(), nullable=False),  # where the document that stays for it stands
        pa.field(
            "size", pa.uint32(), nullable=False
        ),  # in one row of each group: how many are dropped for that document; else 0
    ]
)
_SENT = np.dtype([("of", "<u4"), ("origin", "<u4"), ("where", "<u8"), ("reason", "i1")])
_TOLD = np.dtype([("where", "<u8"), ("of", "<u8"), ("reason", "i1"), ("size", "<u4")])


@dataclass(frozen=True, kw_only=True)
class ToOrigins:
    """An `Exchange`: ranges ask the ranges of those that stay, and blocks settle."""

    directory: str
    before: str

    def ask(self, block: int) -> Iterator[tuple[int, bytes]]:
        state, documents = States(self.directory).load(self.before, block), Range(self.directory, block)
        gone = np.flatnonzero(state["reason"] != KEPT)
        of = state["of"][gone]
        records = packed(
            _SENT,
            of=position_of(of),
            origin=documents.column("origin")[gone],
            where=documents.column("where")[gone],
            reason=state["reason"][gone],
        )
        yield from letters(range_of(of), records, block)

    def match(self, bucket: int, messages: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        _, sent = opened(messages, _SENT)
        sent = sent[np.lexsort((sent["where"], sent["of"]))]
        where = Range(self.directory, bucket).column("where")[sent["of"]]
        told = packed(_TOLD, where=sent["where"], of=where, reason=sent["reason"], size=sizes(sent["of"].astype(np.int64)))
        yield from letters(sent["origin"], told, bucket)

    def settle(self, block: int, answers: Iterable[bytes]) -> dict[str, Any]:
        _, told = opened(answers, _TOLD)
        told = told[np.argsort(told["where"])]
        write_dropped(self.directory, block, *(told[name] for name in ("where", "reason", "of", "size")))
        return {}


def sizes(of: I64) -> Array:
    """uint32 [n]: how often a number is there, at the first of each; 0 at the others."""
    found = np.zeros(of.size, np.uint32)
    _, first, counts = np.unique(of, return_index=True, return_counts=True)
    found[first] = counts
    return found


def write_dropped(directory: str, block: int, where: U64, reason: Array, of: U64, size: Array) -> None:
    """A block's file, schema SCHEMA."""
    columns = [pa.array(np.ascontiguousarray(column)) for column in (where, reason, of, size)]
    write_arrow(block_file(directory, DROPPED, block), SCHEMA, [pa.RecordBatch.from_arrays(columns, schema=SCHEMA)])


def read_dropped(directory: str, block: int) -> dict[str, Array]:
    table = read_arrow(block_file(directory, DROPPED, block))
    return {name: table[name].to_numpy() for name in SCHEMA.names}
