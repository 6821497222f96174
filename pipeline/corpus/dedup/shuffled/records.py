"""Corpus stage: the numbers that travel between blocks and buckets, packed.

A *where* says where a document stands, in the order of the parts: part, batch and row in 22, 21 and 21 bits. A *rank* says where it stands
in the order in which documents stay: the number of its range, and its position there, in 32 bits each.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.core import storage
from pipeline.core.random_keys import U64

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

MOST_PARTS, MOST_BATCHES, MOST_ROWS = 1 << 22, 1 << 21, 1 << 21
_BATCH, _ROW = np.uint64(42), np.uint64(21)
_LOW = np.uint64((1 << 21) - 1)
_RANGE = np.uint64(32)
_POSITION = np.uint64((1 << 32) - 1)


def where_of(part: int, batch: int, rows: int) -> U64:
    """uint64 [rows]: of all rows of a batch."""
    return np.arange(rows, dtype=np.uint64) + np.uint64((part << 42) | (batch << 21))


def places_of(where: U64) -> tuple[I32, I32, I32]:
    """Part, batch and row, int32 each."""
    part, batch, row = where >> _BATCH, (where >> _ROW) & _LOW, where & _LOW
    return part.astype(np.int32), batch.astype(np.int32), row.astype(np.int32)


def ranks_of(block: int, positions: Array) -> U64:
    """uint64: the ranks of positions in a range."""
    return positions.astype(np.uint64) | np.uint64(block << 32)


def range_of(ranks: U64) -> I64:
    return (ranks >> _RANGE).astype(np.int64)


def position_of(ranks: U64) -> I64:
    return (ranks & _POSITION).astype(np.int64)


def slice_of(values: U64, slices: int) -> I64:
    """int64: of values that are hashes, in which of so many equal parts of all numbers each lies; it grows with the value."""
    return (((values >> _RANGE) * np.uint64(slices)) >> _RANGE).astype(np.int64)


def runs(keys: Array) -> Iterator[tuple[int, int, int]]:
    """(key, begin, end) of each run of equal keys."""
    if keys.size:
        change = np.flatnonzero(keys[1:] != keys[:-1]) + 1
        borders = [0, *change.tolist(), int(keys.size)]
        for begin, end in zip(borders[:-1], borders[1:], strict=True):
            yield int(keys[begin]), begin, end


def letters(addressees: Array, records: Array, head: int) -> Iterator[tuple[int, bytes]]:
    """Messages: for each addressee its records, in their order, behind `head`: who sends them, or of what they are."""
    order = np.argsort(addressees, kind="stable")
    records = records[order]
    for addressee, begin, end in runs(addressees[order]):
        yield addressee, head.to_bytes(4, "little") + records[begin:end].tobytes()


def opened(messages: Iterable[bytes], kind: np.dtype[Any]) -> tuple[I64, Array]:
    """The records of all messages, and for each the head of its message."""
    heads, counts, bodies = [], [], []
    for message in messages:
        heads.append(int.from_bytes(message[:4], "little"))
        bodies.append(message[4:])
        counts.append(len(bodies[-1]) // kind.itemsize)
    return np.repeat(np.array(heads, np.int64), counts), np.frombuffer(b"".join(bodies), kind)


def packed(kind: np.dtype[Any], **columns: Array) -> Array:
    """Records of these columns."""
    found = np.empty(next(iter(columns.values())).size, kind)
    for name, column in columns.items():
        found[name] = column
    return found


def save(path: str, **arrays: Array) -> None:
    """Write arrays to one file, whole or not at all."""
    room, named = io.BytesIO(), dict[str, Any](arrays)
    np.savez(room, **named)
    storage.write_bytes(path, room.getvalue())


def load(path: str) -> dict[str, Array]:
    """What `save` wrote."""
    with storage.open_input(path) as handle, np.load(io.BytesIO(handle.read())) as found:
        return {name: found[name] for name in found.files}
