"""Corpus stage: what the rounds on the engine leave undecided, compared in one process: few documents, or the last resort.

It goes on where the rounds stopped, by the very functions that decide all of a small corpus, so nobody sees where that was.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core.arrow import write_arrow
from pipeline.core.stage import Build
from pipeline.corpus.dedup.columns import Columns
from pipeline.corpus.dedup.duplicates import linked_duplicates, similar_duplicates
from pipeline.corpus.dedup.options import MinHash
from pipeline.corpus.dedup.plan import KEPT, NEAR, local_room
from pipeline.corpus.dedup.shuffled.blocks import block_file
from pipeline.corpus.dedup.shuffled.ranges import Range, States
from pipeline.corpus.dedup.shuffled.records import Array, position_of, range_of, ranks_of
from pipeline.engines.fan_out import fan_out

ROWS = "undecided"


@dataclass(frozen=True, kw_only=True)
class WriteUndecided:
    """What `fan_out` does to each range: writes ranks, bands and sketches of the documents that are undecided."""

    directory: str
    before: str
    minhash: MinHash
    threshold: float

    def __call__(self, unit: dict[str, int]) -> dict[str, Any]:
        number = unit["number"]
        state, documents = States(self.directory).load(self.before, number), Range(self.directory, number)
        at = waiting_in(state)
        columns = {"rank": pa.array(ranks_of(number, at))}
        for name in (f"band_{band:02d}" for band in range(self.minhash.bands)):
            columns[name] = pa.array(documents.column(name)[at].astype(np.uint64))
        if self.threshold:
            sketches = np.ascontiguousarray(documents.column("sketch")[at])
            kind = pa.binary(self.minhash.minima)
            columns["sketch"] = pa.FixedSizeBinaryArray.from_buffers(kind, len(at), [None, pa.py_buffer(sketches.tobytes())])
        rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        write_arrow(block_file(self.directory, ROWS, number), rows.schema, [rows])
        return {"documents": len(at)}


def waiting_in(state: dict[str, Array]) -> Array:
    """int64: the positions of documents that are undecided; before any round, and for components, all that take part."""
    if "waiting" in state:
        return state["waiting"]
    return np.flatnonzero((state["reason"] == KEPT) | (state["reason"] == NEAR))


def decide(
    build: Build, directory: str, before: str, after: str, ranges: int, minhash: MinHash, threshold: float, rounds: int
) -> None:
    """Decide on the documents that the states of step `before` leave, and write those of step `after`.

    Args:
        rounds: of `similar_duplicates`.
    """
    write = WriteUndecided(directory=directory, before=before, minhash=minhash, threshold=threshold)
    units = [(f"{number:06d}", {"number": number}) for number in range(ranges)]
    fan_out(build, f"dedup-{after}", units, write, unit_name="ranges")
    with tempfile.TemporaryDirectory(prefix="cloze-plan-", dir=local_room(directory)) as room:
        columns = Columns(room)
        columns.gather([block_file(directory, ROWS, number) for number in range(ranges)])
        alive = np.ones(columns.count, dtype=bool)
        if threshold:
            held = columns.mapped("sketch")
            of = similar_duplicates(
                lambda band: columns.load(f"band_{band:02d}"),
                minhash.bands,
                alive,
                lambda numbers: held[numbers],
                threshold,
                rounds,
            )
        else:
            of = linked_duplicates((columns.load(f"band_{band:02d}") for band in range(minhash.bands)), alive)
        ranks = columns.load("rank")
        first = ranks[of]
        gone = first != ranks
        where, first = ranks[gone], first[gone]
        edges = np.searchsorted(range_of(where), np.arange(ranges + 1))
    for number in range(ranges):
        state = States(directory).load(before, number)
        state["of"][waiting_in(state)] = ranks_of(number, waiting_in(state))
        state["reason"][waiting_in(state)] = KEPT
        own = slice(edges[number], edges[number + 1])
        state["reason"][position_of(where[own])] = NEAR
        state["of"][position_of(where[own])] = first[own]
        States(directory).save(after, number, reason=state["reason"], of=state["of"])
