"""Corpus stage: the scratch files between reading and writing.

    parts/NAME.arrow            the slice's documents, schema PART, in runs: up to some 32 MB of text, sorted by place
    parts/NAME.refs.arrow       for each document, in the same order, what is needed to find its duplicates and to place it
    parts/NAME.rejected.arrow   with `keep_rejected`: what reading dropped, in runs sorted by place

A document's *place* is a hash of its key. Shard `s` of `S` takes the places from s/S to (s+1)/S, so what one shard takes from a run
lies together: it is read at one go, from a disk or from an object store.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core import random_keys, storage
from pipeline.core.errors import DataError
from pipeline.corpus.dedup.options import MinHash

I64 = npt.NDArray[np.int64]

REJECTED = pa.schema(
    [
        pa.field("key", pa.uint64(), nullable=False),  # of the document
        pa.field("id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("title", pa.string(), nullable=False),
        pa.field("scope", pa.string(), nullable=False),  # document, or line: a line, paragraph or sentence taken out of it
        pa.field("step", pa.string(), nullable=False),  # which dropped it
        pa.field("reason", pa.string(), nullable=False),  # as in the counters
        pa.field(
            "detail", pa.string(), nullable=False
        ),  # of a duplicate the id of the one that stays; of contamination the task's words
        pa.field("text", pa.string(), nullable=False),
    ],
    metadata={"cloze.rejected": "1"},
)


def references_schema(minhash: MinHash | None, verified: bool, mixed: bool = False) -> pa.Schema:
    """What is known of each document of a part; a column is read at a time.

    Args:
        mixed: whether some are chosen by their words and languages (pipeline/corpus/mixing.py).
    """
    fields = [
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("characters", pa.uint32(), nullable=False),
        pa.field("bytes", pa.uint32(), nullable=False),
        pa.field("heldout", pa.bool_(), nullable=False),
        pa.field("exact_high", pa.uint64(), nullable=False),
        pa.field("exact_low", pa.uint64(), nullable=False),
    ]
    if mixed:
        fields += [pa.field(name, pa.uint32(), nullable=False) for name in ("words", "language")]
    if minhash is not None:
        fields += [pa.field(f"band_{band:02d}", pa.uint64(), nullable=False) for band in range(minhash.bands)]
        if verified:
            fields.append(pa.field("sketch", pa.binary(minhash.minima), nullable=False))
    return pa.schema(fields)


def place(key: npt.ArrayLike) -> random_keys.U64:
    """uint64: where in the corpus the documents of these keys stand."""
    return random_keys.derive(0x504C414345, key)


def shard_of(places: random_keys.U64, shards: int) -> I64:
    """int64: the number of the shard that each place is in."""
    return random_keys.below(places, shards).astype(np.int64)


def compact(array: pa.Array, kind: pa.DataType | None = None) -> pa.Array:
    """The same values in buffers that hold nothing else, so that a file's bytes follow from the values alone.

    Args:
        kind: of the result: the array's, or a dictionary of its values, which are then sorted.
    """
    kind = kind or array.type
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        array = array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks)
    if pa.types.is_dictionary(kind):
        values = array.cast(kind.value_type)
        names = pc.unique(values).sort()
        return pa.DictionaryArray.from_arrays(compact(pc.index_in(values, value_set=names)), compact(names))
    if pa.types.is_list(kind):
        offsets = array.offsets.to_numpy().astype(np.int32)
        values = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        return pa.ListArray.from_arrays(pa.array(offsets - offsets[0]), compact(values), type=kind)
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([compact(one) for one in array.flatten()], fields=list(kind))
    if pa.types.is_string(kind):
        ends = (
            np.frombuffer(array.buffers()[1], dtype=np.int32, count=len(array) + 1, offset=4 * array.offset)
            if len(array)
            else np.zeros(1, np.int32)
        )
        data = array.buffers()[2]
        held = memoryview(data)[int(ends[0]) : int(ends[-1])] if data is not None else b""
        return pa.StringArray.from_buffers(
            len(array), pa.py_buffer((ends - ends[0]).astype(np.int32)), pa.py_buffer(bytes(held))
        )
    return pa.array(array.to_numpy(zero_copy_only=False).copy(), kind)


def compact_batch(table: pa.Table, arrow_schema: pa.Schema) -> pa.RecordBatch:
    """The table as one record batch of `compact` columns."""
    columns = [compact(table[field.name], field.type) for field in arrow_schema]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema)


class PartFile:
    """A part, read a batch at a time: mapped from a local disk, by ranges from elsewhere."""

    def __init__(self, path: str) -> None:
        try:
            fs, inner = storage.filesystem(path)
            if storage.is_local(path):
                self._source: Any = pa.memory_map(inner)
            else:
                self._source = pa.PythonFile(fs.open(inner, "rb", cache_type="none"), mode="r")
            self._reader = pa.ipc.open_file(self._source)
        except FileNotFoundError as error:
            raise DataError(f"{path} does not exist; run the stage again") from error
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{path} is damaged ({str(error).splitlines()[0]}); remove the directory and run the stage again"
            ) from error
        self.batches: int = self._reader.num_record_batches
        self.schema: pa.Schema = self._reader.schema

    def batch(self, number: int) -> pa.RecordBatch:
        return self._reader.get_batch(number)

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> PartFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
