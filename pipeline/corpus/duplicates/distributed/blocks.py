"""Blocks of documents, and the packed messages between blocks and buckets.

A *where* is the position of a document: intermediate file, batch and row in 22, 21 and 21 bits.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.core import storage
from cloze.core.errors import UsageError
from cloze.core.random_keys import U64
from cloze.pipeline.corpus.duplicates.search import flat
from cloze.pipeline.corpus.read.intermediate import IntermediateFile

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

MOST_PARTS, MOST_BATCHES, MOST_ROWS = 1 << 22, 1 << 21, 1 << 21
_BATCH, _ROW = np.uint64(42), np.uint64(21)
_LOW = np.uint64((1 << 21) - 1)
_HALF = np.uint64(32)


def where_of(part: int, batch: int, rows: int) -> U64:
    """Return the positions of all rows of a batch, uint64 [rows]."""
    return np.arange(rows, dtype=np.uint64) + np.uint64((part << 42) | (batch << 21))


def places_of(where: U64) -> tuple[I32, I32, I32]:
    """Return file number, batch and row, int32 each."""
    part, batch, row = where >> _BATCH, (where >> _ROW) & _LOW, where & _LOW
    return part.astype(np.int32), batch.astype(np.int32), row.astype(np.int32)


def slice_of(values: U64, slices: int) -> I64:
    """Return the slice number of each hash, int64: equal ranges of values, in order."""
    return (((values >> _HALF) * np.uint64(slices)) >> _HALF).astype(np.int64)


def runs(keys: Array) -> Iterator[tuple[int, int, int]]:
    """Yield (key, begin, end) of each run of equal keys."""
    if keys.size:
        change = np.flatnonzero(keys[1:] != keys[:-1]) + 1
        borders = [0, *change.tolist(), int(keys.size)]
        for begin, end in zip(borders[:-1], borders[1:], strict=True):
            yield int(keys[begin]), begin, end


def pack_messages(addressees: Array, records: Array, head: int) -> Iterator[tuple[int, bytes]]:
    """Yield one message per addressee: its records in order, preceded by the number `head`."""
    order = np.argsort(addressees, kind="stable")
    records = records[order]
    for addressee, begin, end in runs(addressees[order]):
        yield addressee, head.to_bytes(4, "little") + records[begin:end].tobytes()


def unpack_messages(messages: Iterable[bytes], kind: np.dtype[Any]) -> tuple[I64, Array]:
    """Return the records of all messages, and for each record the head of its message."""
    heads, counts, bodies = [], [], []
    for message in messages:
        heads.append(int.from_bytes(message[:4], "little"))
        bodies.append(message[4:])
        counts.append(len(bodies[-1]) // kind.itemsize)
    return np.repeat(np.array(heads, np.int64), counts), np.frombuffer(b"".join(bodies), kind)


def packed(kind: np.dtype[Any], **columns: Array) -> Array:
    """Return the columns as a structured array."""
    records = np.empty(next(iter(columns.values())).size, kind)
    for name, column in columns.items():
        records[name] = column
    return records


def save(path: str, **arrays: Array) -> None:
    """Write arrays to one file, atomically."""
    buffer, named = io.BytesIO(), dict[str, Any](arrays)
    np.savez(buffer, **named)
    storage.write_bytes(path, buffer.getvalue())


def load(path: str) -> dict[str, Array]:
    """Read the arrays that `save` wrote."""
    with storage.open_input(path) as handle, np.load(io.BytesIO(handle.read())) as archive:
        return {name: archive[name] for name in archive.files}


WHERE = pa.field("where", pa.uint64(), nullable=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Limits on records held in memory; the result does not depend on them.

    Attributes:
        block: documents per block.
        bucket: values per bucket.
    """

    block: int = 1 << 18
    bucket: int = 1 << 20


SIZES = Sizes()


@dataclass(frozen=True, slots=True)
class Piece:
    """Range of the batches of a file: share `numerator` of `denominator` equal shares."""

    part: int
    path: str
    numerator: int
    denominator: int


def cut_blocks(references: Sequence[str], documents: Sequence[int], size: int) -> list[list[Piece]]:
    """Divide the signatures of all files, in order, into blocks of about `size` documents.

    Args:
        references: file of signatures per intermediate file.
        documents: number of documents per file.
    """
    if len(references) > MOST_PARTS:
        raise UsageError(
            f"the sources are {len(references):,} parts, {MOST_PARTS:,} at most; join small files, "
            f"or raise dedup_in_memory_documents"
        )
    blocks: list[list[Piece]] = []
    remaining = 0
    for number, (path, count) in enumerate(zip(references, documents, strict=True)):
        shares = max(1, -(-count // size))
        for share in range(shares):
            if remaining <= 0:
                blocks.append([])
                remaining = size
            blocks[-1].append(Piece(number, path, share, shares))
            remaining -= max(1, count // shares)
    return blocks


def write_blocks(directory: str, blocks: Sequence[Sequence[Piece]]) -> None:
    """Write a file per block, so that workers need not be sent the list of all files."""
    storage.make_dirs(directory)
    for number, pieces in enumerate(blocks):
        rows = [[piece.part, piece.path, piece.numerator, piece.denominator] for piece in pieces]
        storage.write_bytes(
            storage.join(directory, f"{number:06d}.json"), json.dumps(rows).encode()
        )


def block_file(directory: str, step: str, number: int, ending: str = "arrow") -> str:
    """Return the path of a step's file of a block."""
    return storage.join(directory, step, f"{number:06d}.{ending}")


class Block:
    """Signatures of one block."""

    def __init__(self, directory: str, number: int) -> None:
        """Open a block; `directory` is the parent of that of `write_blocks`."""
        rows = json.loads(storage.read_text(block_file(directory, "blocks", number, "json")))
        self._pieces = [Piece(*row) for row in rows]

    def _batches(self) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        for piece in self._pieces:
            with IntermediateFile(piece.path) as file:
                if file.batches > MOST_BATCHES:
                    raise UsageError(
                        f"{piece.path} has {file.batches:,} batches, {MOST_BATCHES:,} at most; cut "
                        f"the source into more files"
                    )
                first, last = (
                    file.batches * edge // piece.denominator
                    for edge in (piece.numerator, piece.numerator + 1)
                )
                for number in range(first, last):
                    yield piece.part, number, file.batch(number)

    def columns(self, *names: str) -> dict[str, Any]:
        """Return the named columns, and `where`, uint64 [n]."""
        collected: dict[str, list[Any]] = {name: [] for name in (*names, "where")}
        for part, number, batch in self._batches():
            assert batch.num_rows <= MOST_ROWS
            collected["where"].append(where_of(part, number, batch.num_rows))
            for name in names:
                collected[name].append(flat(batch[name]))
        return {
            name: np.concatenate(pieces) if pieces else np.zeros(0, np.uint64)
            for name, pieces in collected.items()
        }

    def table(self) -> pa.Table:
        """Return all columns, and `where`."""
        pieces = [
            pa.Table.from_batches([batch]).append_column(
                WHERE, pa.array(where_of(part, number, batch.num_rows))
            )
            for part, number, batch in self._batches()
        ]
        return pa.concat_tables(pieces) if pieces else self.schema().empty_table()

    def schema(self) -> pa.Schema:
        """Return the schema of `table`."""
        with IntermediateFile(self._pieces[0].path) as file:
            return file.schema.append(WHERE)
