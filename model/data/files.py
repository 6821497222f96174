"""A dataset shard, opened: what it says of itself, and the flat buffers of its record batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.core import storage
from pipeline.core.errors import DataError
from pipeline.core.ragged import I64
from pipeline.dataset.schema import DatasetInfo, ShardLayout, dataset_schema

MASKS = "masks"

# The flat buffers of a record batch: what is read of a row lies at known places of them.
ID_OFFSETS, IDS, SEGMENT_START, VALID, LABELS, MASK_OFFSETS, POSITION_OFFSETS, POSITIONS = range(8)
REPLACEMENT_OFFSETS, REPLACEMENTS, DOCUMENTS, SENTENCES, BOUNDARY_OFFSETS, BOUNDARIES = range(8, 14)
BUFFERS = 14


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Where the values of one record batch are.

    Attributes:
        arrays: by buffer, the array that its values lie in: the whole file's bytes where the shard is not compressed, which all of
            its record batches then share, else the buffer's own.
        begins: int64 [BUFFERS], where in its array each buffer begins.
        sizes: int64 [BUFFERS], how many elements it has; 0 where there is none.
        unpacked: the bytes that were unpacked for it; 0 where it is mapped.
    """

    arrays: list[npt.NDArray[Any]]
    begins: I64
    sizes: I64
    unpacked: int


class ShardFile:
    """An open shard.

    Args:
        file: its path.
        masks: whether stored masks will be asked for.

    Raises:
        DataError: it is damaged, or no dataset shard.
    """

    def __init__(self, file: str, masks: bool = True) -> None:
        self.file = file
        try:
            self._buffer = _bytes_of(file)
            self._reader = self._open(None)
            self.info = DatasetInfo.from_schema(self._reader.schema, file)
            self.layout = ShardLayout.from_schema(self._reader.schema, file)
            self.dtypes = _dtypes(self._reader.schema, self.info)
            self.rows, self.bins = self._count()
            views = {dtype: _array(self._buffer, dtype) for dtype in set(self.dtypes)}
            self._arrays = [views[dtype] for dtype in self.dtypes]
            if not masks:
                names = self._reader.schema.names
                self._reader = self._open([number for number, name in enumerate(names) if name != MASKS])
        except DataError:
            raise
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{file} is damaged or no dataset shard ({error}); make the dataset again") from error

    def _open(self, fields: list[int] | None) -> pa.RecordBatchFileReader:
        options = pa.ipc.IpcReadOptions(use_threads=False, **({} if fields is None else {"included_fields": fields}))
        return pa.ipc.open_file(pa.BufferReader(self._buffer), options=options)

    def _count(self) -> tuple[I64, I64]:
        """Rows of each record batch, and its length bin; from the layout, or by looking at each where there is none."""
        batches = self._reader.num_record_batches
        if self.layout is None:
            reader = self._open([self._reader.schema.get_field_index("segment_start")])
            sizes = np.array([reader.get_batch(number).num_rows for number in range(batches)], np.int64)
            return sizes, np.zeros(batches, np.int64)
        sizes, bins = self.layout.batches()
        if len(sizes) != batches:
            raise DataError(
                f"{self.file} is damaged (it has {batches} record batches, its layout says {len(sizes)}); make the dataset again"
            )
        return sizes, bins

    def record_batch(self, number: int) -> RecordBatch:
        """The record batch of that number.

        Raises:
            DataError: it is damaged.
        """
        try:
            batch = self._reader.get_batch(number)
            batch.validate()
            if batch.num_rows != self.rows[number]:
                raise ValueError(f"record batch {number} has {batch.num_rows} rows, the layout says {self.rows[number]}")
            buffers, least = _buffers(batch)
            sizes = [0 if b is None else b.size // dtype.itemsize for b, dtype in zip(buffers, self.dtypes, strict=True)]
            if (np.array(sizes) < least).any():
                raise ValueError(f"record batch {number} lacks values")
            return self._mapped(buffers, np.array(sizes, np.int64)) or self._unpacked(buffers, np.array(sizes, np.int64))
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{self.file} is damaged or no dataset shard ({error}); make the dataset again") from error

    def _mapped(self, buffers: list[pa.Buffer | None], sizes: I64) -> RecordBatch | None:
        """As places in the file; None where a buffer is not in it."""
        begins = np.zeros(BUFFERS, np.int64)
        for place, buffer in enumerate(buffers):
            if buffer is None or not buffer.size:
                continue
            at = buffer.address - self._buffer.address
            if at < 0 or at + buffer.size > self._buffer.size:
                return None
            begins[place], rest = divmod(at, self.dtypes[place].itemsize)
            if rest:
                raise ValueError("a buffer is not aligned")
        return RecordBatch(self._arrays, begins, sizes, 0)

    def _unpacked(self, buffers: list[pa.Buffer | None], sizes: I64) -> RecordBatch:
        arrays = [_array(buffer, dtype) for buffer, dtype in zip(buffers, self.dtypes, strict=True)]
        return RecordBatch(arrays, np.zeros(BUFFERS, np.int64), sizes, sum(array.nbytes for array in arrays))


def _array(buffer: pa.Buffer | None, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The buffer's values, without a copy; a single 0 where there are none, so that place 0 can always be read."""
    count = 0 if buffer is None else buffer.size // dtype.itemsize
    return np.zeros(1, dtype) if buffer is None or not count else np.frombuffer(buffer, dtype, count)


def _bytes_of(file: str) -> pa.Buffer:
    """The file's bytes: mapped on a local disk (no file descriptor is kept), in memory from elsewhere."""
    if storage.is_local(file):
        with pa.memory_map(storage.filesystem(file)[1]) as mapped:
            return mapped.read_buffer()
    with storage.open_input(file) as handle:
        return pa.py_buffer(handle.read())


def _dtypes(schema: pa.Schema, info: DatasetInfo) -> list[np.dtype[Any]]:
    """The dtype of each buffer; raises `ValueError` where a column is missing or of another type."""
    ids = np.dtype(schema.field("input_ids").type.value_type.to_pandas_dtype())
    for field in dataset_schema(info, ids):
        if schema.field(field.name).type != field.type:
            raise ValueError(f"the column {field.name} is {schema.field(field.name).type}, not {field.type}")
    kinds: dict[int, Any] = {IDS: ids, REPLACEMENTS: ids, VALID: np.uint8, LABELS: np.int8, DOCUMENTS: np.uint64}
    kinds |= {POSITIONS: np.uint16, BOUNDARIES: np.uint16}
    return [np.dtype(kinds.get(place, np.int32)) for place in range(BUFFERS)]


def _buffers(batch: pa.RecordBatch) -> tuple[list[pa.Buffer | None], I64]:
    """The flat buffers, and how many elements each must have at least: int64 [BUFFERS]."""
    rows = batch.num_rows
    found: list[pa.Buffer | None] = [None] * BUFFERS
    least = np.zeros(BUFFERS, np.int64)
    ids, labels, source = batch.column("input_ids"), batch.column("pair_label"), batch.column("source")
    if any(column.offset for column in batch.columns):
        raise ValueError("a column begins in the middle of its buffers")
    found[ID_OFFSETS], found[IDS] = ids.buffers()[1], ids.values.buffers()[1]
    found[SEGMENT_START] = batch.column("segment_start").buffers()[1]
    found[VALID], found[LABELS] = labels.buffers()
    found[DOCUMENTS], found[SENTENCES] = (source.field(name).buffers()[1] for name in ("document", "offset"))
    least[[ID_OFFSETS]] = rows + 1
    least[[SEGMENT_START, LABELS, DOCUMENTS, SENTENCES]] = rows
    if labels.null_count:
        least[VALID] = -(-rows // 8)
    else:
        found[VALID] = None
    if MASKS in batch.schema.names:
        masks = batch.column(MASKS)
        positions, replacements = masks.values.field("positions"), masks.values.field("input_ids")
        found[MASK_OFFSETS] = masks.buffers()[1]
        found[POSITION_OFFSETS], found[POSITIONS] = positions.buffers()[1], positions.values.buffers()[1]
        found[REPLACEMENT_OFFSETS], found[REPLACEMENTS] = replacements.buffers()[1], replacements.values.buffers()[1]
        least[[MASK_OFFSETS]] = rows + 1
    if "boundaries" in batch.schema.names:
        boundaries = batch.column("boundaries")
        found[BOUNDARY_OFFSETS], found[BOUNDARIES] = boundaries.buffers()[1], boundaries.values.buffers()[1]
        least[BOUNDARY_OFFSETS] = rows + 1
    return found, least
