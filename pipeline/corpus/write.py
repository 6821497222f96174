"""Corpus stage, last step: a shard's number -> the shard, its documents taken from the parts.

With `keep_rejected`, another file beside it holds what was dropped of the documents whose place is in that shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.core import storage
from pipeline.core.arrow import write_arrow
from pipeline.core.shards import shard_name
from pipeline.corpus.card.statistics import measure
from pipeline.corpus.dedup.plan import REASONS
from pipeline.corpus.parts import REJECTED, PartFile, compact_batch, joined, place, shard_of
from pipeline.corpus.schema import CORPUS

REJECTED_DIRECTORY = "rejected"


def corpus_shard_name(number: int, shards: int) -> str:
    return shard_name("corpus", number, shards)


def rejected_name(number: int, shards: int) -> str:
    return storage.join(REJECTED_DIRECTORY, shard_name("rejected", number, shards))


@dataclass(frozen=True, kw_only=True)
class WriteShard:
    """Write one shard of the corpus.

    Attributes:
        parts: the parts' paths without their endings, by number.
        plan: the file that holds the plan.
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
        with PartFile(self.plan) as plan:
            chosen = plan.batch(number)
            places = [chosen[name].to_numpy().copy() for name in ("part", "batch", "row")]
        table = taken(self.parts, CORPUS, *places)
        batch = compact_batch(table, CORPUS)
        write_arrow(storage.join(self.directory, corpus_shard_name(number, self.shards)), CORPUS, [batch])
        return measure(batch, self.documents)


@dataclass(frozen=True, kw_only=True)
class WriteRejected:
    """Write what was dropped of one shard's documents: by reading them, or as copies of others.

    Attributes:
        copies: the file that says which documents are copies, schema COPIES, a batch a shard.
        Others as in `WriteShard`.
    """

    parts: tuple[str, ...]
    copies: str
    directory: str
    shards: int

    def __call__(self, unit: dict[str, int]) -> dict[str, Any]:
        """Args: unit: `number` of the shard. Returns: rows written."""
        number = unit["number"]
        pieces = [*self._read(number), self._copies(number)]
        table = pa.concat_tables([REJECTED.empty_table(), *pieces]).combine_chunks()
        # one document's lines keep their order; of two documents with one id the text decides
        order = [(name, "ascending") for name in ("key", "scope", "step", "reason", "text", "detail")]
        batch = compact_batch(table.take(pa.compute.sort_indices(table, order)), REJECTED)
        write_arrow(storage.join(self.directory, rejected_name(number, self.shards)), REJECTED, [batch])
        return {"rows": batch.num_rows}

    def _read(self, number: int) -> Iterator[pa.Table]:
        for path in self.parts:
            with PartFile(f"{path}.rejected.arrow") as part:
                for batch_number in range(part.batches):
                    batch = part.batch(batch_number)
                    chosen = np.flatnonzero(shard_of(place(batch["key"].to_numpy()), self.shards) == number)
                    if chosen.size:
                        yield pa.Table.from_batches([batch.take(pa.array(chosen))])

    def _copies(self, number: int) -> pa.Table:
        with PartFile(self.copies) as copies:
            batch = copies.batch(number)
            found = {name: batch[name].to_numpy().copy() for name in batch.schema.names}
        documents = taken(self.parts, CORPUS, found["part"], found["batch"], found["row"]).to_pylist()
        stay = taken(self.parts, CORPUS, found["of_part"], found["of_batch"], found["of_row"])["id"].to_pylist()
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


def taken(
    parts: tuple[str, ...], arrow_schema: pa.Schema, part: npt.NDArray[Any], batch: npt.NDArray[Any], row: npt.NDArray[Any]
) -> pa.Table:
    """The documents that stand at these places, in this order; a part is opened once."""
    order = np.lexsort((row, batch, part))
    pieces = [pa.RecordBatch.from_pylist([], schema=arrow_schema)]
    for begin, end in _runs(part[order]):
        with PartFile(f"{parts[part[order[begin]]]}.arrow") as file:
            for first, last in _runs(batch[order[begin:end]]):
                chosen = order[begin + first : begin + last]
                pieces.append(file.batch(int(batch[chosen[0]])).take(pa.array(row[chosen])))
    return pa.Table.from_batches(pieces).combine_chunks().take(pa.array(np.argsort(order)))


def _runs(column: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """(begin, end) of each run of equal values."""
    if not column.size:
        return
    change = np.flatnonzero(column[1:] != column[:-1]) + 1
    borders = [0, *change.tolist(), int(column.size)]
    yield from zip(borders[:-1], borders[1:], strict=True)
