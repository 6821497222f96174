"""Corpus stage, last step: a shard's number -> the shard, its documents taken from the parts.

With `keep_rejected`, another file beside it holds what was dropped of the documents whose place is in that shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.core import storage
from pipeline.core.arrow import read_arrow, write_arrow
from pipeline.core.shards import shard_name
from pipeline.corpus.by_shard import read_of_shard
from pipeline.corpus.dedup.plan import REASONS
from pipeline.corpus.document import joined
from pipeline.corpus.mixing import copied_id, copied_key
from pipeline.corpus.parts import REJECTED, PartFile, compact_batch, place, shard_of, taken
from pipeline.corpus.schema import CORPUS, PART
from pipeline.corpus.statistics import measure

REJECTED_DIRECTORY = "rejected"

REJECTED_INDEX = pa.schema([pa.field(name, pa.int32(), nullable=False) for name in ("part", "batch", "first", "last")])


def corpus_shard_name(number: int, shards: int) -> str:
    return shard_name("corpus", number, shards)


def rejected_name(number: int, shards: int) -> str:
    return storage.join(REJECTED_DIRECTORY, shard_name("rejected", number, shards))


def rejected_file(part: str) -> str:
    """Where what reading dropped lies, of a part whose path this is."""
    return f"{part}.rejected.arrow"


@dataclass(frozen=True, kw_only=True)
class WriteShard:
    """Write one shard of the corpus.

    Attributes:
        parts: the parts' paths without their endings, by number.
        plan: the file that holds the plan, or its first piece (pipeline/corpus/by_shard.py).
        directory: where the shards go.
        shards: how many there are.
        documents: of the whole corpus.
    """

    parts: tuple[str, ...]
    plan: str
    directory: str
    shards: int
    documents: int

    def __call__(self, unit: dict[str, int]) -> dict[str, Any]:
        """Args: unit: `number` of the shard. Returns: its statistics."""
        number = unit["number"]
        chosen = read_of_shard(self.plan, number)
        table = taken(self.parts, PART, chosen["part"], chosen["batch"], chosen["row"])
        table = _renamed(table, chosen["copy"].astype(np.int64))
        batch = compact_batch(table, CORPUS)
        write_arrow(storage.join(self.directory, corpus_shard_name(number, self.shards)), CORPUS, [batch])
        return measure(batch, self.documents)


def _renamed(table: pa.Table, copies: npt.NDArray[np.int64]) -> pa.Table:
    """The documents, repetitions under ids and keys of their own."""
    if not copies.any():
        return table
    names = [copied_id(name, copy) for name, copy in zip(table["id"].to_pylist(), copies.tolist(), strict=True)]
    table = table.set_column(0, PART.field("key"), pa.array(copied_key(table["key"].to_numpy(), copies), pa.uint64()))
    return table.set_column(1, PART.field("id"), pa.array(names, pa.string()))


def index_rejected(parts: Sequence[str], shards: int, path: str) -> None:
    """Write which shards each batch of dropped text has rows of, so that a shard's writer opens these batches alone.

    Batches are sorted by place, so the first and the last row tell.

    Args:
        parts: as in `WriteShard`.
        shards: how many there are.
        path: of the index, schema REJECTED_INDEX, a row a batch.
    """
    rows: list[tuple[int, int, int, int]] = []
    for number, part in enumerate(parts):
        with PartFile(rejected_file(part)) as file:
            for batch_number in range(file.batches):
                keys = file.batch(batch_number)["key"].to_numpy()
                first, last = shard_of(place(keys[[0, -1]]), shards).tolist()
                rows.append((number, batch_number, first, last))
    columns = [pa.array(column, pa.int32()) for column in (zip(*rows, strict=True) if rows else ([], [], [], []))]
    write_arrow(path, REJECTED_INDEX, [pa.RecordBatch.from_arrays(columns, schema=REJECTED_INDEX)])


@dataclass(frozen=True, kw_only=True)
class WriteRejected:
    """Write what was dropped of one shard's documents: by reading them, or as duplicates of others.

    Attributes:
        index: what `index_rejected` wrote.
        duplicates: the file that says which documents are duplicates, schema DUPLICATES, a batch a shard; or its first piece.
        Others as in `WriteShard`.
    """

    parts: tuple[str, ...]
    index: str
    duplicates: str
    directory: str
    shards: int

    def __call__(self, unit: dict[str, int]) -> dict[str, Any]:
        """Args: unit: `number` of the shard. Returns: rows written."""
        number = unit["number"]
        pieces = [*self._read(number), self._duplicates(number)]
        table = pa.concat_tables([REJECTED.empty_table(), *pieces]).combine_chunks()
        # one document's lines keep their order; of two documents with one id the text decides
        order = [(name, "ascending") for name in ("key", "scope", "step", "reason", "text", "detail")]
        batch = compact_batch(table.take(pa.compute.sort_indices(table, order)), REJECTED)
        write_arrow(storage.join(self.directory, rejected_name(number, self.shards)), REJECTED, [batch])
        return {"rows": batch.num_rows}

    def _read(self, number: int) -> Iterator[pa.Table]:
        index = read_arrow(self.index)
        part, batches, first, last = (index[name].to_numpy() for name in REJECTED_INDEX.names)
        own = np.flatnonzero((first <= number) & (number <= last))
        for chosen in np.unique(part[own]).tolist():
            with PartFile(rejected_file(self.parts[chosen])) as file:
                for batch_number in batches[own[part[own] == chosen]].tolist():
                    batch = file.batch(batch_number)
                    rows = np.flatnonzero(shard_of(place(batch["key"].to_numpy()), self.shards) == number)
                    if rows.size:
                        yield pa.Table.from_batches([batch.take(pa.array(rows))])

    def _duplicates(self, number: int) -> pa.Table:
        found = read_of_shard(self.duplicates, number)
        documents = taken(self.parts, PART, found["part"], found["batch"], found["row"]).to_pylist()
        stay = taken(self.parts, PART, found["of_part"], found["of_batch"], found["of_row"])["id"].to_pylist()
        rows = [
            {
                **{name: document[name] for name in ("key", "id", "source", "title")},
                "scope": "document",
                "step": "dedup",
                "reason": REASONS[why],
                "detail": of,
                "text": joined(document["sentences"], document["paragraphs"]),
            }
            for document, of, why in zip(documents, stay, found["reason"].tolist(), strict=True)
        ]
        return pa.Table.from_pylist(rows, schema=REJECTED)
