"""Corpus stage: which documents share a key, an exact hash or a band with any other. All others stay, and no later step looks at them.

A value travels without its document, 8 bytes once a block; what comes back is the values that another block has, too. The documents
found are the only ones that rules about duplicates look at, and each of these rules looks at documents that share something alone: so
the rules, held to these documents in their order, give what they give of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core import random_keys
from pipeline.core.arrow import write_arrow
from pipeline.core.random_keys import U64
from pipeline.corpus.dedup.options import MinHash
from pipeline.corpus.dedup.shuffled.blocks import Block, block_file
from pipeline.corpus.dedup.shuffled.records import I64, Array, letters, opened, slice_of

FOUND = "candidates"  # the step's files: references of the documents found, with their wheres
_VALUE = np.dtype("<u8")
_SAMPLE = 0x53414D504C45


def looked_at(minhash: MinHash | None, exact: bool) -> tuple[str, ...]:
    """The columns of references in which duplicates have a value in common; of an exact hash one half will do here."""
    bands = [] if minhash is None else [f"band_{band:02d}" for band in range(minhash.bands)]
    return ("key", *(["exact_high"] if exact else []), *bands)


@dataclass(frozen=True, kw_only=True)
class Screen:
    """See the module; an `Exchange`.

    Attributes:
        directory: of scratch files.
        columns: `looked_at`.
        slices: into how many buckets a column's values are shared out.
        sampled: one document of so many is told of: (shorter, key, where).
    """

    directory: str
    columns: tuple[str, ...]
    slices: int
    sampled: int

    def ask(self, block: int) -> Iterator[tuple[int, bytes]]:
        columns = Block(self.directory, block).columns(*self.columns)
        for number, name in enumerate(self.columns):
            values = np.unique(columns[name])
            yield from letters(number * self.slices + slice_of(values, self.slices), values, block)

    def match(self, bucket: int, messages: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        senders, values = opened(messages, _VALUE)
        order = np.argsort(values, kind="stable")
        same = values[order][1:] == values[order][:-1]
        shared = np.zeros(values.size, dtype=bool)
        shared[1:] |= same
        shared[:-1] |= same
        chosen = order[shared]
        yield from letters(senders[chosen], values[chosen], bucket // self.slices)

    def settle(self, block: int, answers: Iterable[bytes]) -> dict[str, Any]:
        table = Block(self.directory, block).table()
        heads, values = opened(answers, _VALUE)
        found = np.zeros(table.num_rows, dtype=bool)
        for number, name in enumerate(self.columns):
            own = table[name].to_numpy()
            found |= _repeated(own) | np.isin(own, np.unique(values[heads == number]))
        table = table.filter(pa.array(found)).combine_chunks()
        write_arrow(block_file(self.directory, FOUND, block), table.schema, table.to_batches())
        return {"documents": int(found.size), "found": table.num_rows, "sample": self._sample(table)}

    def _sample(self, table: pa.Table) -> list[list[int]]:
        shorter, key, where = rank_columns(table)
        chosen = random_keys.derive(_SAMPLE, key) % np.uint64(self.sampled) == 0
        found: list[list[int]] = np.stack([column[chosen] for column in (shorter, key, where)], axis=1).tolist()
        return found


def rank_columns(table: pa.Table) -> tuple[U64, U64, U64]:
    """What documents are ranked by, first things first: the longest first, then by key, then by where they stand."""
    characters, key, where = (table[name].to_numpy() for name in ("characters", "key", "where"))
    return np.uint64(np.iinfo(np.uint32).max) - characters.astype(np.uint64), key, where


def _repeated(values: U64) -> Array:
    """bool [n]: whose value another document of the block has, too."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    found: I64 = counts[inverse.reshape(-1)]
    return found > 1
