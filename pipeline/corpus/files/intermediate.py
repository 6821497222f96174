"""Intermediate files between reading and writing, and the Arrow schema of a corpus shard."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cloze.core import random_keys, storage
from cloze.core.arrow import file_buffer
from cloze.core.errors import DataError, first_line
from cloze.core.ragged import I64
from cloze.pipeline.corpus.document import InfoboxField
from cloze.pipeline.corpus.options import MinHash
from cloze.pipeline.corpus.signatures import SKETCH_BYTES

# 2: url, licence, origin; 3: infobox. Readers of shards ask for the columns they need, so shards of
# earlier versions remain readable.
VERSION = 3


def _required(*fields: tuple[str, pa.DataType]) -> list[pa.Field]:
    return [pa.field(name, kind, nullable=False) for name, kind in fields]


_NAME = pa.dictionary(pa.int32(), pa.string())  # for a few values that most documents share
_BOX_FIELD = pa.struct(_required(*((name, pa.string()) for name in InfoboxField._fields)))

CORPUS = pa.schema(
    _required(
        ("key", pa.uint64()),  # blake2b of `id`: the document's random seed
        ("id", pa.string()),  # source kind / file / the document's own name
        ("source", pa.string()),  # name of the reader: wikipedia, books, …
        ("title", pa.string()),
        ("url", pa.string()),  # of the document, if the source gives one; else empty
        ("licence", _NAME),  # SPDX name or expression, or any text; empty: unknown
        ("origin", _NAME),  # name of the source and date of the snapshot: `enwiki 2024-05-01`
        ("infobox", pa.list_(_BOX_FIELD)),  # fields of the infoboxes, if the options ask for them
        ("split", pa.string()),  # train | heldout, derived from `key`
        ("sentences", pa.list_(pa.string())),  # in order
        ("paragraphs", pa.list_(pa.int32())),  # index of each sentence that opens a paragraph
    ),
    metadata={"cloze.corpus": str(VERSION)},
)
"""Schema of a corpus shard; a row is a document."""

PART = pa.schema(
    [
        pa.field(field.name, pa.string(), nullable=False)
        if pa.types.is_dictionary(field.type)
        else field
        for field in CORPUS
    ]
)
"""Schema of documents in intermediate files, without dictionaries: batches cannot share one."""

DROPPED_SCHEMA = pa.schema(
    _required(
        ("key", pa.uint64()),  # of the document
        ("id", pa.string()),
        ("source", pa.string()),
        ("title", pa.string()),
        ("scope", pa.string()),  # document, or line (a line, paragraph or sentence)
        ("step", pa.string()),  # the cleaning step
        ("reason", pa.string()),  # as in the counters
        ("detail", pa.string()),  # id of the kept document, or the words of a task
        ("text", pa.string()),
    ),
    metadata={"cloze.dropped": "1"},
)

AHEAD_BYTES = 8 << 20  # at most, of one request to a store for batches in order


def signatures_schema(minhash: MinHash | None, verified: bool, mixed: bool = False) -> pa.Schema:
    """Return the schema of the signatures of an intermediate file; it is read column by column.

    Args:
        minhash: None: without bands and sketches.
        verified: with sketches, to estimate similarities.
        mixed: with words and language, for the mixture (pipeline/corpus/mixing.py).
    """
    numbers = [("key", pa.uint64()), ("characters", pa.uint32()), ("bytes", pa.uint32())]
    numbers += [("heldout", pa.bool_()), ("exact_high", pa.uint64()), ("exact_low", pa.uint64())]
    if mixed:
        numbers += [("words", pa.uint32()), ("language", pa.uint32())]
    if minhash is not None:
        numbers += [(f"band_{band:02d}", pa.uint64()) for band in range(minhash.bands)]
        if verified:
            numbers.append(("sketch", pa.binary(SKETCH_BYTES)))
    return pa.schema(_required(*numbers))


def shard_position(key: npt.ArrayLike) -> random_keys.U64:
    """Return the position of documents in the corpus as uint64, a hash of their keys."""
    return random_keys.fold_in(0x504C414345, key)


def shard_of(positions: random_keys.U64, shards: int) -> I64:
    """Return the shard number of each position, int64."""
    return random_keys.randint_below(positions, shards).astype(np.int64)


def compact(array: pa.Array, kind: pa.DataType | None = None) -> pa.Array:
    """Copy an array into minimal buffers, so that the bytes of a file depend on the values only.

    Args:
        kind: type of the result; a dictionary type gives a sorted dictionary.
    """
    kind = kind or array.type
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        array = array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks)
    if pa.types.is_dictionary(kind):
        values = array.cast(kind.value_type)
        names = pc.unique(values).sort()
        return pa.DictionaryArray.from_arrays(
            compact(pc.index_in(values, value_set=names)), compact(names)
        )
    if pa.types.is_list(kind):
        offsets = array.offsets.to_numpy().astype(np.int32)
        values = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        return pa.ListArray.from_arrays(pa.array(offsets - offsets[0]), compact(values), type=kind)
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays(
            [compact(column) for column in array.flatten()], fields=list(kind)
        )
    if pa.types.is_string(kind):
        ends = (
            np.frombuffer(
                array.buffers()[1], dtype=np.int32, count=len(array) + 1, offset=4 * array.offset
            )
            if len(array)
            else np.zeros(1, np.int32)
        )
        data = array.buffers()[2]
        text = memoryview(data)[int(ends[0]) : int(ends[-1])] if data is not None else b""
        return pa.StringArray.from_buffers(
            len(array), pa.py_buffer((ends - ends[0]).astype(np.int32)), pa.py_buffer(bytes(text))
        )
    return pa.array(array.to_numpy(zero_copy_only=False).copy(), kind)


def compact_batch(table: pa.Table, arrow_schema: pa.Schema) -> pa.RecordBatch:
    """Return the table as one record batch of compact columns."""
    columns = [compact(table[field.name], field.type) for field in arrow_schema]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema)


class IntermediateFile:
    """An intermediate file, read by batch: memory-mapped if local, else by range requests.

    Args:
        names: columns to read. Default: all.
    """

    def __init__(self, path: str, names: Sequence[str] | None = None) -> None:
        self._cache: Any = None  # of a file in a store
        try:
            if storage.is_local(path):
                self._source: Any = pa.BufferReader(file_buffer(path))
            else:
                fs, inner = storage.filesystem(path)
                file = fs.open(inner, "rb", block_size=0, cache_type="readahead")
                self._cache, self._bytes = getattr(file, "cache", None), file.size
                self._source = pa.PythonFile(file, mode="r")
            self._reader = pa.ipc.open_file(self._source)
            if names is not None:
                fields = [self._reader.schema.get_field_index(name) for name in names]
                options = pa.ipc.IpcReadOptions(included_fields=fields)
                self._reader = pa.ipc.open_file(self._source, options=options)
        except FileNotFoundError as error:
            raise DataError(f"{path} does not exist; run the stage again") from error
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{path} is damaged ({first_line(error)}); remove the directory and run the stage "
                f"again"
            ) from error
        self.batches: int = self._reader.num_record_batches

    def batch(self, number: int) -> pa.RecordBatch:
        return self._reader.get_batch(number)

    def in_order(self, first: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield consecutive batches by few requests, of which none goes much beyond the last."""
        for number in range(first, end):
            if self._cache is not None:  # batches have about equal sizes
                left = self._bytes * (end - number) // self.batches
                self._cache.blocksize = left // -(-left // AHEAD_BYTES)
            yield self.batch(number)

    def __enter__(self) -> IntermediateFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()


def documents_at(
    parts: Sequence[str],
    part: npt.NDArray[Any],
    batch: npt.NDArray[Any],
    row: npt.NDArray[Any],
    *,
    names: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Return documents by their positions; each file and batch is read once.

    Args:
        parts: paths without endings.
        names: columns to read. Default: all.
    """
    documents: list[dict[str, Any]] = [{}] * len(row)
    order = np.lexsort((row, batch, part)).tolist()
    for number, in_part in itertools.groupby(order, lambda at: int(part[at])):
        with IntermediateFile(f"{parts[number]}.arrow", names) as file:
            for batch_number, in_batch in itertools.groupby(in_part, lambda at: int(batch[at])):
                table = file.batch(batch_number)
                for at in in_batch:
                    (documents[at],) = table.slice(int(row[at]), 1).to_pylist()
    return documents
