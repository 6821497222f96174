"""Last two steps of the corpus stage: sort the documents by shard, and write the shards.

    sort     a unit's documents, as its plan says (`plans.py`) -> a run of an exchange
    shards   consecutive shards <- their documents in all runs

With `keep_dropped`, the dropped texts take the same way in an exchange of their own, to a second
file per shard. A duplicate's row names the kept document, which another unit may have: that unit
sends the id to the duplicate's shard, where rows and ids with the same number are joined.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cloze.core import storage
from cloze.core.arrow import read_arrow, write_arrow
from cloze.core.artifacts.artifact import shard_name
from cloze.core.ragged import I64
from cloze.pipeline.corpus.document import join_sentences
from cloze.pipeline.corpus.duplicates.unit_plans import REASONS, RETAINED, Piece, UnitPlan
from cloze.pipeline.corpus.files.intermediate import (
    CORPUS,
    DROPPED_SCHEMA,
    PART,
    IntermediateFile,
    compact_batch,
    shard_of,
    shard_position,
)
from cloze.pipeline.corpus.mixing import copied_id, copied_key
from cloze.pipeline.corpus.statistics import measure
from cloze.pipeline.runners.exchange import Exchange

DROPPED_DIRECTORY = "dropped"
# Number of the document if it is a duplicate, else NO_NUMBER. Ids of originals have no step.
DROPPED_RUN = pa.schema([*DROPPED_SCHEMA, pa.field("number", pa.int64(), nullable=False)])
NO_NUMBER = -1


def _shards(keys: pa.ChunkedArray | pa.Array, shards: int) -> I64:
    """Return the shard of each key."""
    return shard_of(shard_position(keys.to_numpy()), shards)


@dataclass(frozen=True, kw_only=True)
class SortDocuments:
    """Sort the documents of a unit by shard, and its dropped texts."""

    plans: str  # directory of the plans
    documents: Exchange  # exchange of documents; a place is a shard
    dropped: Exchange | None  # exchange of dropped texts; None: not kept

    def __call__(self, unit: int) -> dict[str, int]:
        """Write a run; return its bytes."""
        plan = UnitPlan.read(self.plans, unit, keep_dropped=self.dropped is not None)
        if self.dropped is not None:
            self.dropped.write(unit, _placed(_dropped_texts(plan), self.dropped.places))
        documents = _placed(_documents(plan), self.documents.places)
        return {"bytes": self.documents.write(unit, documents)}


def _placed(tables: Iterator[pa.Table], shards: int) -> Iterator[tuple[pa.Table, I64]]:
    return ((table, _shards(table["key"], shards)) for table in tables)


def _selected(pieces: list[Piece], rows: I64) -> Iterator[tuple[pa.Table, slice]]:
    """Yield the documents at ascending `rows` of a unit, and which of the rows they are."""
    begin = 0
    for path, first, end in pieces:
        with IntermediateFile(f"{path}.arrow") as file:
            for batch in file.in_order(first, end):
                own = slice(*np.searchsorted(rows, (begin, begin + batch.num_rows)).tolist())
                if own.start < own.stop:
                    table = pa.Table.from_batches([batch])
                    wanted = rows[own] - begin
                    is_whole = np.array_equal(wanted, np.arange(batch.num_rows))
                    yield (table if is_whole else table.take(pa.array(wanted))), own
                begin += batch.num_rows


def _documents(plan: UnitPlan) -> Iterator[pa.Table]:
    """Yield the kept documents of a unit."""
    copies = plan.kept["copy"].to_numpy().astype(np.int64)
    for table, own in _selected(plan.pieces, plan.kept["row"].to_numpy()):
        yield _renamed(table, copies[own])


def _renamed(table: pa.Table, copies: npt.NDArray[np.int64]) -> pa.Table:
    """Return the documents with new ids and keys for repetitions."""
    if not copies.any():
        return table
    names = [
        copied_id(name, copy)
        for name, copy in zip(table["id"].to_pylist(), copies.tolist(), strict=True)
    ]
    table = table.set_column(
        0, PART.field("key"), pa.array(copied_key(table["key"].to_numpy(), copies), pa.uint64())
    )
    return table.set_column(1, PART.field("id"), pa.array(names, pa.string()))


def _dropped_texts(plan: UnitPlan) -> Iterator[pa.Table]:
    """Yield the texts that cleaning dropped, the duplicates, and the ids of originals."""
    for path in plan.dropped:
        table = read_arrow(f"{path}.dropped.arrow")
        numbers = pa.array(np.full(table.num_rows, NO_NUMBER))
        yield pa.table([*table.columns, numbers], schema=DROPPED_RUN)
    assert plan.duplicates is not None
    facts = plan.duplicates.to_pylist()
    for table, own in _selected(plan.pieces, plan.duplicates["row"].to_numpy()):
        rows = []
        for document, fact in zip(table.to_pylist(), facts[own], strict=True):
            row = dict.fromkeys(DROPPED_SCHEMA.names, "") | {
                "key": fact["key"],
                "id": document["id"],
                "number": fact["number"],
            }
            if fact["reason"] != RETAINED:
                row |= {
                    **{name: document[name] for name in ("source", "title")},
                    "scope": "document",
                    "step": "dedup",
                    "reason": REASONS[fact["reason"]],
                    "text": join_sentences(document["sentences"], document["paragraphs"]),
                }
            rows.append(row)
        yield pa.Table.from_pylist(rows, schema=DROPPED_RUN)


@dataclass(frozen=True, kw_only=True)
class WriteShards:
    """Write the shards of a destination, and the files of dropped texts."""

    runs: Exchange  # runs and dropped: `documents` and `dropped` of `SortDocuments`
    dropped: Exchange | None
    directory: str  # output directory
    documents: int  # number of documents in the corpus

    def __call__(self, unit: int) -> dict[str, Any]:
        """Write the shards; return the statistics of each, and the number of dropped texts."""
        shards, rows = self.runs.places, 0
        statistics = []
        for number, table in _by_shard(self.runs, unit, PART):
            order = np.argsort(table["key"].to_numpy(), kind="stable")
            batch = compact_batch(table.take(pa.array(order)), CORPUS)
            path = storage.join(self.directory, shard_name("corpus", number, shards))
            write_arrow(path, CORPUS, [batch])
            statistics.append(measure(batch, self.documents))
        if self.dropped is not None:
            for number, table in _by_shard(self.dropped, unit, DROPPED_RUN):
                batch = _join_originals(table)
                name = shard_name("dropped", number, shards)
                path = storage.join(self.directory, DROPPED_DIRECTORY, name)
                write_arrow(path, DROPPED_SCHEMA, [batch])
                rows += batch.num_rows
        return {"shards": statistics, "dropped": rows}


def _by_shard(
    exchange: Exchange, destination: int, arrow_schema: pa.Schema
) -> Iterator[tuple[int, pa.Table]]:
    """Yield each shard of a destination, and its rows."""
    shards = range(exchange.places)[destination * exchange.group :][: exchange.group]
    with exchange.read(arrow_schema, destination, destination + 1) as ranges:
        batches = list(ranges.batches(destination))
        edges = [
            np.searchsorted(
                _shards(batch["key"], exchange.places), [*shards, shards[-1] + 1]
            ).tolist()
            for batch in batches
        ]
        for at, number in enumerate(shards):
            slices = [
                batch.slice(bounds[at], bounds[at + 1] - bounds[at])
                for batch, bounds in zip(batches, edges, strict=True)
            ]
            table = pa.Table.from_batches(slices, schema=arrow_schema).combine_chunks()
            ranges.release()
            yield number, table


def _join_originals(table: pa.Table) -> pa.RecordBatch:
    """Return the dropped texts of a shard in order; duplicates get the id of the original."""
    is_original = pc.equal(table["step"], "")
    originals, rows = table.filter(is_original), table.filter(pc.invert(is_original))
    at = pc.index_in(rows["number"], value_set=originals["number"])
    details = pc.coalesce(originals["id"].take(at), rows["detail"])
    place = rows.schema.get_field_index("detail")
    rows = rows.set_column(place, DROPPED_SCHEMA.field("detail"), details)
    # lines of one document keep their order; for equal ids the text decides
    order = [(name, "ascending") for name in ("key", "scope", "step", "reason", "text", "detail")]
    return compact_batch(rows.take(pc.sort_indices(rows, order)), DROPPED_SCHEMA)
