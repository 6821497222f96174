"""Open dataset shard: its schema metadata and the flat buffers of its record batches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.core.arrow import file_buffer
from cloze.core.errors import DataError
from cloze.core.ragged import I64
from cloze.pipeline.dataset.schema import DatasetInfo, ShardLayout, dataset_schema

MASKS = "masks"

# Numbers of the flat buffers of a record batch.
ID_OFFSETS, IDS, SEGMENT_START, VALID, LABELS, MASK_OFFSETS, POSITION_OFFSETS, POSITIONS = range(8)
REPLACEMENT_OFFSETS, REPLACEMENTS, DOCUMENTS, SENTENCES, BOUNDARY_OFFSETS, BOUNDARIES = range(8, 14)
DRAWINGS, BUFFERS = 14, 15


@contextlib.contextmanager
def _damage_as_data_error(file: str) -> Iterator[None]:
    damage = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError)
    try:
        yield
    except DataError:
        raise
    except damage as error:
        raise DataError(
            f"{file} is damaged or no dataset shard ({error}); make the dataset again"
        ) from error


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Location of the values of one record batch.

    Attributes:
        arrays: array with the values of each buffer. Uncompressed shards: the whole file, shared by
            all record batches; else one array per buffer.
        begins: int64 [BUFFERS], start of each buffer in its array.
        sizes: int64 [BUFFERS], elements of each buffer; 0 for none.
        unpacked: decompressed bytes; 0 if memory-mapped.
    """

    arrays: list[npt.NDArray[Any]]
    begins: I64
    sizes: I64
    unpacked: int


class ShardFile:
    """Open shard.

    Args:
        masks: the stored masks will be read.

    Raises:
        DataError: the file is damaged or no dataset shard.
    """

    def __init__(self, file: str, masks: bool = True) -> None:
        self.file = file
        with _damage_as_data_error(self.file):
            self._buffer = file_buffer(file)
            self._reader = self._open(None)
            self.info = DatasetInfo.from_schema(self._reader.schema, file)
            self.layout = ShardLayout.from_schema(self._reader.schema, file)
            if self.layout and {self.info.drawings} != set(map(len, self.layout.cells)):
                raise ValueError("its layout has another number of drawings")
            self.dtypes = _dtypes(self._reader.schema, self.info)
            self.rows = self._count()
            # The whole file as one array of each dtype: numpy checks every index of a row.
            views = {dtype: _array(self._buffer, dtype) for dtype in set(self.dtypes)}
            self._arrays = [views[dtype] for dtype in self.dtypes]
            if not masks:
                names = self._reader.schema.names
                self._reader = self._open(
                    [number for number, name in enumerate(names) if name != MASKS]
                )

    def _open(self, fields: list[int] | None) -> pa.RecordBatchFileReader:
        options = pa.ipc.IpcReadOptions(
            use_threads=False, **({} if fields is None else {"included_fields": fields})
        )
        return pa.ipc.open_file(pa.BufferReader(self._buffer), options=options)

    @property
    def cells(self) -> I64:
        """Rows of each length bin and drawing: int64 [bins, D]."""
        cells = [[self.rows.sum()]] if self.layout is None else self.layout.cells
        return np.array(cells, np.int64)

    def _count(self) -> I64:
        """Return the rows of each record batch, from the layout or the batches."""
        batches = self._reader.num_record_batches
        if self.layout is None:
            reader = self._open([self._reader.schema.get_field_index("segment_start")])
            return np.array(
                [reader.get_batch(number).num_rows for number in range(batches)], np.int64
            )
        sizes = self.layout.batches()
        if len(sizes) != batches:
            raise DataError(
                f"{self.file} is damaged (it has {batches} record batches, its layout says "
                f"{len(sizes)}); make the dataset again"
            )
        return sizes

    def record_batch(self, number: int) -> RecordBatch:
        """Return the record batch with this number.

        Raises:
            DataError: the record batch is damaged.
        """
        with _damage_as_data_error(self.file):
            batch = self._reader.get_batch(number)
            batch.validate()
            if batch.num_rows != self.rows[number]:
                raise ValueError(
                    f"record batch {number} has {batch.num_rows} rows, the layout says "
                    f"{self.rows[number]}"
                )
            buffers, minimum_sizes = _buffers(batch)
            sizes = [
                0 if value_buffer is None else value_buffer.size // dtype.itemsize
                for value_buffer, dtype in zip(buffers, self.dtypes, strict=True)
            ]
            if (np.array(sizes) < minimum_sizes).any():
                raise ValueError(f"record batch {number} lacks values")
            return self._mapped(buffers, np.array(sizes, np.int64)) or self._unpacked(
                buffers, np.array(sizes, np.int64)
            )

    def _mapped(self, buffers: list[pa.Buffer | None], sizes: I64) -> RecordBatch | None:
        """Return the record batch as places in the file; None if a buffer is not in the file."""
        begins = np.zeros(BUFFERS, np.int64)
        for number, buffer in enumerate(buffers):
            if buffer is None or not buffer.size:
                continue
            # Arrow gives a view of the file, or memory of its own if the buffer is compressed.
            offset = buffer.address - self._buffer.address
            if offset < 0 or offset + buffer.size > self._buffer.size:
                return None
            begins[number], remainder = divmod(offset, self.dtypes[number].itemsize)
            if remainder:
                raise ValueError("a buffer is not aligned")
        return RecordBatch(self._arrays, begins, sizes, 0)

    def _unpacked(self, buffers: list[pa.Buffer | None], sizes: I64) -> RecordBatch:
        arrays = [_array(buffer, dtype) for buffer, dtype in zip(buffers, self.dtypes, strict=True)]
        return RecordBatch(
            arrays, np.zeros(BUFFERS, np.int64), sizes, sum(array.nbytes for array in arrays)
        )


def _array(buffer: pa.Buffer | None, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """View the buffer as an array without a copy; a single 0 if empty, so index 0 is readable."""
    count = 0 if buffer is None else buffer.size // dtype.itemsize
    return (
        np.zeros(1, dtype) if buffer is None or not count else np.frombuffer(buffer, dtype, count)
    )


def _dtypes(schema: pa.Schema, info: DatasetInfo) -> list[np.dtype[Any]]:
    """Return the dtype of each buffer; raises `ValueError` for a missing column or wrong type."""
    ids = np.dtype(schema.field("input_ids").type.value_type.to_pandas_dtype())
    for field in dataset_schema(info, ids):
        if schema.field(field.name).type != field.type:
            raise ValueError(
                f"the column {field.name} is {schema.field(field.name).type}, not {field.type}"
            )
    dtypes: dict[int, Any] = {
        IDS: ids,
        REPLACEMENTS: ids,
        VALID: np.uint8,
        LABELS: np.int8,
        DOCUMENTS: np.uint64,
    }
    dtypes |= {POSITIONS: np.uint16, BOUNDARIES: np.uint16}
    return [np.dtype(dtypes.get(number, np.int32)) for number in range(BUFFERS)]


def _buffers(batch: pa.RecordBatch) -> tuple[list[pa.Buffer | None], I64]:
    """Return the flat buffers and the minimum number of elements of each, int64 [BUFFERS]."""
    rows = batch.num_rows
    buffers: list[pa.Buffer | None] = [None] * BUFFERS
    minimum_sizes = np.zeros(BUFFERS, np.int64)
    ids, labels, source = map(batch.column, ("input_ids", "pair_label", "source"))
    # Buffers are read from their first value, so a slice's offset would be ignored.
    if any(column.offset for column in batch.columns):
        raise ValueError("a column begins in the middle of its buffers")
    lists = {ID_OFFSETS: ids}
    buffers[SEGMENT_START] = batch.column("segment_start").buffers()[1]
    buffers[VALID], buffers[LABELS] = labels.buffers()
    for number, field in zip((DOCUMENTS, SENTENCES, DRAWINGS), source.type, strict=False):
        buffers[number] = source.field(field.name).buffers()[1]
        minimum_sizes[number] = rows
    minimum_sizes[[ID_OFFSETS]] = rows + 1
    minimum_sizes[[SEGMENT_START, LABELS]] = rows
    if labels.null_count:
        minimum_sizes[VALID] = -(-rows // 8)
    else:
        # Without nulls Arrow may leave the bitmap out, so it is not asked for.
        buffers[VALID] = None
    if MASKS in batch.schema.names:
        masks = batch.column(MASKS)
        lists[POSITION_OFFSETS] = masks.values.field("positions")
        lists[REPLACEMENT_OFFSETS] = masks.values.field("input_ids")
        buffers[MASK_OFFSETS] = masks.buffers()[1]
        minimum_sizes[[MASK_OFFSETS]] = rows + 1
    if "boundaries" in batch.schema.names:
        lists[BOUNDARY_OFFSETS] = batch.column("boundaries")
        minimum_sizes[BOUNDARY_OFFSETS] = rows + 1
    for number, column in lists.items():  # the number of the values follows that of the offsets
        buffers[number], buffers[number + 1] = column.buffers()[1], column.values.buffers()[1]
    return buffers, minimum_sizes
