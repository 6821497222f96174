"""Corpus stage: who goes to which shard, from all blocks, in the order of keys; and the same of what was dropped.

Shards that follow each other are a bucket, which writes a piece of the plan. The pieces one after the other are the plan's file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core import storage
from pipeline.core.arrow import write_arrow
from pipeline.core.random_keys import U64
from pipeline.corpus.by_shard import write_by_shard
from pipeline.corpus.dedup.plan import DUPLICATES, PLAN
from pipeline.corpus.dedup.shuffled.blocks import Block, block_file
from pipeline.corpus.dedup.shuffled.figures import kept_of
from pipeline.corpus.dedup.shuffled.origins import read_dropped
from pipeline.corpus.dedup.shuffled.records import Array, letters, load, opened, packed, places_of
from pipeline.corpus.mixing import copied_key
from pipeline.corpus.parts import PartFile, place, shard_of

TAKEN = "taken"  # with a mixture: a file a block of which documents are taken, and which repetition each is
_KEPT, _DROPPED = 0, 1
_SENT = (
    np.dtype([("shard", "<u4"), ("key", "<u8"), ("where", "<u8"), ("copy", "<u4")]),
    np.dtype([("shard", "<u4"), ("key", "<u8"), ("where", "<u8"), ("reason", "i1"), ("of", "<u8")]),
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """An `Exchange`: blocks ask, pieces settle.

    Attributes:
        shards: how many there are.
        each: shards of a piece.
        chosen: whether `TAKEN` says which documents are taken.
        duplicates: whether the places of what was dropped are wanted.
    """

    directory: str
    shards: int
    each: int
    chosen: bool
    duplicates: bool

    @property
    def pieces(self) -> int:
        return -(-self.shards // self.each)

    def ask(self, block: int) -> Iterator[tuple[int, bytes]]:
        kept = kept_of(self.directory, block, "key")
        key, where, copies = kept["key"], kept["where"], np.zeros(kept["key"].size, np.int64)
        if self.chosen:
            taken = load(block_file(self.directory, TAKEN, block, "npz"))
            key, where, copies = key[taken["rows"]], where[taken["rows"]], taken["copies"]
        yield from self._sent(_KEPT, copied_key(key, copies), where=where, copy=copies)
        if self.duplicates:
            columns, gone = Block(self.directory, block).columns("key"), read_dropped(self.directory, block)
            own = columns["key"][np.searchsorted(columns["where"], gone["where"])]
            yield from self._sent(_DROPPED, own, where=gone["where"], reason=gone["reason"], of=gone["of"])

    def _sent(self, which: int, key: U64, **columns: Array) -> Iterator[tuple[int, bytes]]:
        shard = shard_of(place(key), self.shards)
        yield from letters(shard // self.each, packed(_SENT[which], shard=shard, key=key, **columns), which)

    def match(self, bucket: int, messages: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        held = list(messages)
        for which in (_KEPT, _DROPPED):
            _, rows = opened((message for message in held if message[0] == which), _SENT[which])
            self._write(bucket, which, rows)
        yield bucket, b"\1"

    def settle(self, block: int, answers: Iterable[bytes]) -> dict[str, Any]:
        if not any(answers):
            for which in (_KEPT, _DROPPED):
                self._write(block, which, np.zeros(0, _SENT[which]))
        return {}

    def _write(self, piece: int, which: int, rows: Array) -> None:
        rows = rows[np.lexsort((rows["where"], rows["key"], rows["shard"]))]
        first = piece * self.each
        last = min(first + self.each, self.shards)
        edges = np.searchsorted(rows["shard"], np.arange(first, last + 1))
        schema = (PLAN, DUPLICATES)[which]
        batches = (_batch(rows[begin:end], schema) for begin, end in zip(edges[:-1], edges[1:], strict=True))
        write_arrow(_piece_file(self.directory, piece, which), schema, batches)

    def join(self, plan_file: str, duplicates_file: str | None) -> None:
        """Write the files of all shards, a record batch each."""
        for which, path in ((_KEPT, plan_file), (_DROPPED, duplicates_file)):
            if path is not None:
                write_by_shard(path, (PLAN, DUPLICATES)[which], self._joined(which))

    def _joined(self, which: int) -> Iterator[pa.RecordBatch]:
        for piece in range(self.pieces):
            with PartFile(_piece_file(self.directory, piece, which)) as file:
                for number in range(file.batches):
                    yield file.batch(number)


def _piece_file(directory: str, piece: int, which: int) -> str:
    return storage.join(directory, ("plan", "duplicates")[which], f"{piece:06d}.arrow")


def _batch(rows: Array, schema: pa.Schema) -> pa.RecordBatch:
    columns = list(places_of(rows["where"]))
    if schema is PLAN:
        columns.append(rows["copy"].astype(np.int32))
    else:
        columns += [rows["reason"], *places_of(rows["of"])]
    return pa.RecordBatch.from_arrays([pa.array(np.ascontiguousarray(column)) for column in columns], schema=schema)
