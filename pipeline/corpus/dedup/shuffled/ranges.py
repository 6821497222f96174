"""Corpus stage: the documents found by the screen, in the order of their ranks, cut into ranges; and what is known of each so far."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core.arrow import read_arrow, write_arrow
from pipeline.corpus.dedup.columns import flat
from pipeline.corpus.dedup.shuffled.blocks import Block, block_file
from pipeline.corpus.dedup.shuffled.records import I64, Array, load, runs, save
from pipeline.corpus.dedup.shuffled.screen import FOUND, rank_columns

RANKED = "ranked"
ORIGIN = pa.field("origin", pa.uint32(), nullable=False)  # the block that a document came from
CUTS = "cuts.npz"


def cut_ranges(sample: Sequence[Sequence[int]], count: int) -> Array:
    """uint64 [cuts, 3]: the (shorter, key, where) with which ranges begin, all but the first, so that `count` ranges are about equal."""
    ordered = sorted(map(tuple, sample))
    places = sorted({len(ordered) * number // count for number in range(1, count)} - {0})
    return np.array([ordered[place] for place in places if place < len(ordered)], dtype=np.uint64).reshape(-1, 3)


@dataclass(frozen=True, kw_only=True)
class ByRank:
    """Sends every document found to its range, which writes its documents in the order of their ranks; an `Exchange`."""

    directory: str

    def ask(self, block: int) -> Iterator[tuple[int, bytes]]:
        table = read_arrow(block_file(self.directory, FOUND, block))
        if not table.num_rows:
            return
        table = table.append_column(ORIGIN, pa.array(np.full(table.num_rows, block, np.uint32)))
        cuts = load(f"{self.directory}/{CUTS}")["cuts"]
        number = _after(rank_columns(table), cuts)
        order = np.argsort(number, kind="stable")
        for chosen, begin, end in runs(number[order]):
            sink = io.BytesIO()
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table.take(pa.array(order[begin:end])).combine_chunks())
            yield chosen, sink.getvalue()

    def match(self, bucket: int, messages: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        table = pa.concat_tables([pa.ipc.open_stream(message).read_all() for message in messages])
        shorter, key, where = rank_columns(table)
        self._write(bucket, table.take(pa.array(np.lexsort((where, key, shorter)))))
        yield bucket, table.num_rows.to_bytes(8, "little")

    def settle(self, block: int, answers: Iterable[bytes]) -> dict[str, Any]:
        counts = [int.from_bytes(answer, "little") for answer in answers]
        if not counts:
            self._write(block, Block(self.directory, 0).schema().append(ORIGIN).empty_table())
        return {"documents": sum(counts)}

    def _write(self, number: int, table: pa.Table) -> None:
        write_arrow(block_file(self.directory, RANKED, number), table.schema, table.combine_chunks().to_batches())


def _after(columns: tuple[Array, Array, Array], cuts: Array) -> I64:
    """int64 [n]: how many cuts each document stands at or behind."""
    count = len(cuts)
    shorter, key, where = (np.concatenate((cuts[:, place], column)) for place, column in enumerate(columns))
    order = np.lexsort((where, key, shorter))  # of equal ones the cut comes first
    passed = np.empty(order.size, dtype=np.int64)
    passed[order] = np.cumsum(order < count)
    return passed[count:]


class Range:
    """A range's documents, in the order of their ranks; columns are read as they are wanted."""

    def __init__(self, directory: str, number: int) -> None:
        self._table = read_arrow(block_file(directory, RANKED, number))
        self.count: int = self._table.num_rows

    def column(self, name: str) -> Array:
        column = self._table[name].combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # of no chunk at all
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        return flat(column) if len(column) else np.zeros((0, 1) if name == "sketch" else 0, np.uint64)


@dataclass(frozen=True, slots=True)
class States:
    """What each step leaves to the next of a range: a file of arrays.

    `reason` int8 [n] and `of` uint64 [n] as in `Duplicates`, `of` a rank; and what steps want of each other.
    """

    directory: str

    def load(self, step: str, number: int) -> dict[str, Array]:
        return load(block_file(self.directory, step, number, "npz"))

    def save(self, step: str, number: int, **arrays: Array) -> None:
        save(block_file(self.directory, step, number, "npz"), **arrays)


@dataclass(frozen=True, kw_only=True)
class ByBands:
    """What an `Exchange` of ranges by the values of their documents' bands is given.

    Attributes:
        before, after: steps, whose states it reads and leaves.
        bands: of a signature.
        slices: into how many buckets a band's values are shared out.
    """

    directory: str
    before: str
    after: str
    bands: int
    slices: int
