"""Last step of the corpus stage: write ranges of shards from the intermediate files.

A unit writes consecutive shards, because every unit opens every intermediate file and neighbouring
shards share batches. The number of units is bounded, so the files are read only a few times,
whatever the corpus size. With `keep_dropped`, a second file per shard has the dropped texts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.core import storage
from cloze.core.arrow import read_arrow, write_arrow
from cloze.core.artifacts.artifact import shard_name
from cloze.pipeline.corpus.card.statistics import measure
from cloze.pipeline.corpus.document import join_sentences
from cloze.pipeline.corpus.duplicates.plan import REASONS
from cloze.pipeline.corpus.read.intermediate import (
    CORPUS,
    DROPPED_SCHEMA,
    PART,
    IntermediateFile,
    PartReader,
    compact_batch,
    part_files,
    shard_of,
    shard_position,
)
from cloze.pipeline.corpus.read.read_and_clean import BATCH_BYTES, RUN_BYTES
from cloze.pipeline.corpus.write.mixing import copied_id, copied_key
from cloze.pipeline.corpus.write.shards import read_of_shard

DROPPED_DIRECTORY = "dropped"
MOST_UNITS, LEAST_UNITS = 128, 16

DROPPED_INDEX = pa.schema(
    [pa.field(name, pa.int32(), nullable=False) for name in ("part", "batch", "first", "last")]
)


def corpus_shard_name(number: int, shards: int) -> str:
    return shard_name("corpus", number, shards)


def dropped_name(number: int, shards: int) -> str:
    return storage.join(DROPPED_DIRECTORY, shard_name("dropped", number, shards))


def dropped_file(part: str) -> str:
    """Return the file of dropped texts that belongs to an intermediate file."""
    return f"{part}.dropped.arrow"


def shard_ranges(shards: int, part_bytes: Sequence[int], *, ranged: bool) -> list[tuple[int, int]]:
    """Return (first, end) of the shards of each unit.

    Args:
        shards: number of shards.
        part_bytes: bytes of text per intermediate file.
        ranged: batches are fetched by range requests, as from a store. Fewer units then limit the
            total to about twice the bytes of the files.
    """
    units = MOST_UNITS
    if ranged:
        runs = sum(max(1, -(-size // RUN_BYTES)) for size in part_bytes)
        units = min(MOST_UNITS, max(LEAST_UNITS, sum(part_bytes) // max(1, runs * BATCH_BYTES)))
    units = max(1, min(units, shards))
    borders = [shards * number // units for number in range(units + 1)]
    return list(itertools.pairwise(borders)) if shards else []


@dataclass(frozen=True, kw_only=True)
class WriteShards:
    """Write consecutive shards of the corpus.

    Attributes:
        parts: paths of the intermediate files without endings, by number.
        plan: first plan file (pipeline/corpus/write/shards.py).
        directory: output directory.
        shards: number of shards.
        documents: number of documents in the corpus.
        stamp: version of the parts and the plan, if they are copied from a store to this machine.
    """

    parts: tuple[str, ...]
    plan: str
    directory: str
    shards: int
    documents: int
    stamp: str = ""

    def __call__(self, unit: dict[str, int]) -> dict[str, Any]:
        """Write the shards from `first` to `end` of `unit`; return the statistics of each."""
        with PartReader(part_files(self.parts), self.shards, self.stamp) as reader:
            return {
                "shards": [
                    self._write(number, reader) for number in range(unit["first"], unit["end"])
                ]
            }

    def _write(self, number: int, reader: PartReader) -> dict[str, Any]:
        """Write a shard; return its statistics."""
        rows = read_of_shard(self.plan, number, self.stamp)
        table = reader.take(PART, rows["part"], rows["batch"], rows["row"])
        reader.pass_shard(number)
        table = _renamed(table, rows["copy"].astype(np.int64))
        batch = compact_batch(table, CORPUS)
        write_arrow(
            storage.join(self.directory, corpus_shard_name(number, self.shards)), CORPUS, [batch]
        )
        return measure(batch, self.documents)


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


def index_dropped(parts: Sequence[str], shards: int, path: str) -> None:
    """Write which shards each batch of dropped texts has rows for.

    Batches are sorted by position, so the first and last row suffice. A shard's writer then opens
    only the batches it needs.

    Args:
        parts: as in `WriteShards`.
        shards: number of shards.
        path: the index, schema DROPPED_INDEX, a row per batch.
    """
    rows: list[tuple[int, int, int, int]] = []
    for number, part in enumerate(parts):
        with IntermediateFile(dropped_file(part)) as file:
            for batch_number in range(file.batches):
                keys = file.batch(batch_number)["key"].to_numpy()
                first, last = shard_of(shard_position(keys[[0, -1]]), shards).tolist()
                rows.append((number, batch_number, first, last))
    columns = [
        pa.array(column, pa.int32())
        for column in (zip(*rows, strict=True) if rows else ([], [], [], []))
    ]
    write_arrow(path, DROPPED_INDEX, [pa.RecordBatch.from_arrays(columns, schema=DROPPED_INDEX)])


@dataclass(frozen=True, kw_only=True)
class WriteDropped:
    """Write the dropped texts of consecutive shards: dropped by cleaning, or as duplicates.

    Attributes:
        parts, directory, shards, stamp: as in `WriteShards`.
        index: file written by `index_dropped`.
        duplicates: first file of duplicates, schema DUPLICATES, a batch per shard.
    """

    parts: tuple[str, ...]
    index: str
    duplicates: str
    directory: str
    shards: int
    stamp: str = ""

    def __call__(self, unit: dict[str, int]) -> dict[str, Any]:
        """Write the shards from `first` to `end` of `unit`; return the number of rows."""
        index = read_arrow(self.index)
        files = [dropped_file(part) for part in self.parts]
        with (
            PartReader(part_files(self.parts), self.shards, self.stamp) as parts,
            PartReader(files, self.shards, self.stamp) as dropped,
        ):
            return {
                "rows": sum(
                    self._write(number, index, parts, dropped)
                    for number in range(unit["first"], unit["end"])
                )
            }

    def _write(self, number: int, index: pa.Table, parts: PartReader, dropped: PartReader) -> int:
        """Write the dropped texts of a shard; return the number of rows."""
        pieces = [*self._read(number, index, dropped), self._duplicates(number, parts)]
        for reader in (parts, dropped):
            reader.pass_shard(number)
        table = pa.concat_tables([DROPPED_SCHEMA.empty_table(), *pieces]).combine_chunks()
        # lines of one document keep their order; for equal ids the text decides
        order = [
            (name, "ascending") for name in ("key", "scope", "step", "reason", "text", "detail")
        ]
        batch = compact_batch(table.take(pa.compute.sort_indices(table, order)), DROPPED_SCHEMA)
        write_arrow(
            storage.join(self.directory, dropped_name(number, self.shards)), DROPPED_SCHEMA, [batch]
        )
        return int(batch.num_rows)

    def _read(self, number: int, index: pa.Table, dropped: PartReader) -> Iterator[pa.Table]:
        part, batches, first, last = (index[name].to_numpy() for name in DROPPED_INDEX.names)
        for at in np.flatnonzero((first <= number) & (number <= last)).tolist():
            batch = dropped.batch(int(part[at]), int(batches[at]))
            rows = np.flatnonzero(
                shard_of(shard_position(batch["key"].to_numpy()), self.shards) == number
            )
            if rows.size:
                yield pa.Table.from_batches([batch.take(pa.array(rows))])

    def _duplicates(self, number: int, parts: PartReader) -> pa.Table:
        dropped = read_of_shard(self.duplicates, number, self.stamp)
        documents = parts.take(PART, dropped["part"], dropped["batch"], dropped["row"]).to_pylist()
        originals = parts.take(PART, dropped["of_part"], dropped["of_batch"], dropped["of_row"])[
            "id"
        ].to_pylist()
        rows = [
            {
                **{name: document[name] for name in ("key", "id", "source", "title")},
                "scope": "document",
                "step": "dedup",
                "reason": REASONS[why],
                "detail": of,
                "text": join_sentences(document["sentences"], document["paragraphs"]),
            }
            for document, of, why in zip(
                documents, originals, dropped["reason"].tolist(), strict=True
            )
        ]
        return pa.Table.from_pylist(rows, schema=DROPPED_SCHEMA)
