"""Corpus stage: files that hold a record batch for each shard, in pieces of so many shards.

Whoever writes a shard reads one of the batches. The end of an Arrow file says where every batch in it begins; of a file of all shards
each of their writers would read that of all the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from pipeline.core.arrow import write_arrow
from pipeline.corpus.parts import PartFile

SHARDS = 1 << 10  # in a piece


def piece_file(path: str, piece: int) -> str:
    """`plan.arrow`, `plan-00001.arrow`, …"""
    return f"{path.removesuffix('.arrow')}-{piece:05d}.arrow" if piece else path


def write_by_shard(path: str, arrow_schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write a batch for each shard, in the order of shards; they may be made while the pieces are written."""
    rest = iter(batches)
    for piece in itertools.count():
        first = next(rest, None)
        if first is None and piece:
            return
        held = itertools.chain(() if first is None else (first,), itertools.islice(rest, SHARDS - 1))
        write_arrow(piece_file(path, piece), arrow_schema, held)


def read_of_shard(path: str, shard: int) -> dict[str, npt.NDArray[Any]]:
    """The columns of a shard's batch."""
    piece, number = divmod(shard, SHARDS)
    with PartFile(piece_file(path, piece)) as file:
        batch = file.batch(number)
        return {name: batch[name].to_numpy().copy() for name in batch.schema.names}
