"""Files of vectors, which labs share: unit vectors as integers, one file per shard of a corpus;
and the inputs of their artifacts.

`embed-corpus` (selection) writes them; semantic duplicates, dense search and RAG read them.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.core import storage
from cloze.core.arrow import read_arrow, write_arrow
from cloze.core.artifacts import fingerprints
from cloze.core.artifacts.lineage import NearbyArtifacts
from cloze.core.errors import DataError
from cloze.core.random_keys import U64
from cloze.core.stages.worker import JOB, LOGS, Job

F32 = npt.NDArray[np.float32]
I16 = npt.NDArray[np.int16]

SCALE = 4000  # (4000 + √4096 / 2)² is below 2²⁴
WIDEST = 4096


def vectors_file_name(shard: str) -> str:
    """Return the name of the vectors file of a shard of a corpus or an index."""
    return f"vectors-{shard.removeprefix('corpus-').removeprefix('passages-')}"


def vectors_schema(width: int) -> pa.Schema:
    """Return the schema: a document's key and vector per row."""
    fields = [
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("vector", pa.list_(pa.int16(), width), nullable=False),
    ]
    return pa.schema(fields, metadata={"cloze.vectors": "1"})


def quantize(vectors: npt.NDArray[Any]) -> I16:
    """Convert vectors [n, D] to unit vectors times SCALE, int16 [n, D]; a zero vector stays 0.

    Integer inputs give the same result on every machine.
    """
    values = vectors.astype(np.float64)
    squares = values * values
    length = np.sqrt(squares.sum(axis=1, keepdims=True))
    unit = values / np.where(length == 0, 1.0, length)
    quantized: I16 = np.rint(unit * SCALE).astype(np.int16)
    return quantized


def cosines(left: F32, right: F32) -> F32:
    """Return fp32 [n, m] cosines of the rows of `left` and `right`."""
    similarities: F32 = (left @ right.T) / (_lengths(left)[:, None] * _lengths(right))
    return similarities


def _lengths(vectors: F32) -> F32:
    """Return the length of each row, fp32 [n]; 1 for zero rows, as a divisor."""
    lengths: F32 = np.sqrt((vectors * vectors).sum(axis=1))
    return np.where(lengths == 0, np.float32(1), lengths)


def vectors_batch(keys: U64, vectors: I16) -> pa.RecordBatch:
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    return pa.RecordBatch.from_arrays(
        [pa.array(keys), column], schema=vectors_schema(vectors.shape[1])
    )


def write_vectors(path: str, keys: U64, vectors: I16) -> None:
    batch = vectors_batch(keys, vectors)
    write_arrow(path, batch.schema, [batch])


def read_vectors(path: str) -> tuple[U64, I16]:
    """Read keys, uint64 [n], and vectors, int16 [n, D]; raise `DataError` if the file has none."""
    table = read_arrow(path).combine_chunks()
    if table.column_names != ["key", "vector"] or not pa.types.is_fixed_size_list(
        table.schema.field("vector").type
    ):
        raise DataError(f"{path} contains no vectors; create them with `cloze embed-corpus`")
    width = table.schema.field("vector").type.list_size
    if not table.num_rows:
        return np.zeros(0, np.uint64), np.zeros((0, width), np.int16)
    column = table["vector"].chunk(0)
    return table["key"].to_numpy(), column.flatten().to_numpy().reshape(-1, width)


def find_input(path: str, role: str, fingerprint: str) -> str:
    """Return an input of the artifact `path`: where it was then, or else near the artifact.

    Raises:
        DataError: it is in neither place.
    """
    with contextlib.suppress(DataError, OSError, ValueError, TypeError, KeyError):
        recorded = Job.read(storage.join(path, LOGS, JOB)).inputs[role]
        if fingerprints.input_fingerprint(recorded) == fingerprint:
            return recorded
    owner = NearbyArtifacts(path).find(fingerprints.artifact_fingerprint_of(fingerprint))
    if owner is None:
        raise DataError(
            f"the {role} of {path} ({fingerprint[:12]}) is neither where it was nor near it; put "
            f"them into one directory"
        )
    part = fingerprints.subpath_of(fingerprint)
    return storage.join(owner, part) if part else owner
