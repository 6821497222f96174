"""Vectors of length 1 in whole numbers: the files of stage vectors, which stage semdedup reads.

A vector's numbers are those of its unit vector times SCALE, rounded. By the Cauchy-Schwarz inequality no sum of some of the products of two of
them is above SCALE² (and the rounding), which fp32 holds exactly: matrix products of them are the same bits in any order of summation, by any
library, on any number of threads. A cosine is right to about 1e-4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.core.arrow import read_arrow
from pipeline.core.errors import DataError
from pipeline.core.random_keys import U64

F32 = npt.NDArray[np.float32]
I16 = npt.NDArray[np.int16]

SCALE = 4000  # (4000 + √4096 / 2)² is below 2²⁴
WIDEST = 4096


def file_name(shard: str) -> str:
    """Of the vectors of a corpus shard's documents."""
    return f"vectors-{shard.removeprefix('corpus-')}"


def schema(width: int) -> pa.Schema:
    """A document's key and its vector, a row each."""
    fields = [pa.field("key", pa.uint64(), nullable=False), pa.field("vector", pa.list_(pa.int16(), width), nullable=False)]
    return pa.schema(fields, metadata={"cloze.vectors": "1"})


def units(vectors: npt.NDArray[Any]) -> I16:
    """int16 [n, D] of any vectors [n, D]; of whole numbers the same on every machine. One without a length stays 0."""
    values = vectors.astype(np.float64)
    squares = values * values
    length = np.sqrt(squares.sum(axis=1, keepdims=True))
    found: I16 = np.rint(values / np.where(length == 0, 1.0, length) * SCALE).astype(np.int16)
    return found


def cosines(left: F32, right: F32) -> F32:
    """fp32 [n, m], of rows of `units`."""
    found: F32 = (left @ right.T) / (_lengths(left)[:, None] * _lengths(right))
    return found


def _lengths(vectors: F32) -> F32:
    """fp32 [n]: SCALE but for the rounding; of 0 one, to divide by."""
    found: F32 = np.sqrt((vectors * vectors).sum(axis=1))
    return np.where(found == 0, np.float32(1), found)


def batch(keys: U64, vectors: I16) -> pa.RecordBatch:
    """A record batch of `schema`."""
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    return pa.RecordBatch.from_arrays([pa.array(keys), column], schema=schema(vectors.shape[1]))


def read(path: str) -> tuple[U64, I16]:
    """Keys, uint64 [n], and vectors, int16 [n, D], of a file; `DataError` if it is none."""
    table = read_arrow(path).combine_chunks()
    if table.column_names != ["key", "vector"] or not pa.types.is_fixed_size_list(table.schema.field("vector").type):
        raise DataError(f"{path} holds no vectors; make them with `cloze vectors`")
    width = table.schema.field("vector").type.list_size
    if not table.num_rows:
        return np.zeros(0, np.uint64), np.zeros((0, width), np.int16)
    column = table["vector"].chunk(0)
    return table["key"].to_numpy(), column.flatten().to_numpy().reshape(-1, width)
