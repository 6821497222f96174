"""Dataset shards' record batches as flat buffers at known addresses, so that numpy gathers rows out of any of them at once.

A shard without compression is a memory map, and its buffers are found the first time that a row of their record batch is asked
for. Of a compressed one the record batches asked for are unpacked, and the last ones kept, within `CACHE_BYTES`.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.core import storage
from pipeline.core.errors import DataError
from pipeline.core.ragged import I64
from pipeline.dataset.schema import DatasetInfo, ShardLayout, dataset_schema

CACHE_BYTES = 256 << 20  # of unpacked record batches
MASKS = "masks"

# The flat buffers of a record batch: what is read of a row lies at known places of them.
ID_OFFSETS, IDS, SEGMENT_START, VALID, LABELS, MASK_OFFSETS, POSITION_OFFSETS, POSITIONS = range(8)
REPLACEMENT_OFFSETS, REPLACEMENTS, DOCUMENTS, SENTENCES, BOUNDARY_OFFSETS, BOUNDARIES = range(8, 14)
BUFFERS = 14


_PAGE, _ADDRESSES = 1 << 12, 1 << 48


def memory(dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """This process's memory as one flat array: the element at address a is number (a - page) / itemsize.

    Indexing it is how one numpy call reads from many mapped files. Every index must be known to lie in a living buffer.
    """
    raw = np.ctypeslib.as_array((ctypes.c_uint8 * (_ADDRESSES - _PAGE)).from_address(_PAGE))
    return raw.view(dtype)


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

    def buffers(self, number: int) -> tuple[list[pa.Buffer | None], I64, bool]:
        """The flat buffers of a record batch, the elements in each, and whether they were unpacked (and not mapped).

        Raises:
            DataError: the record batch is damaged.
        """
        try:
            batch = self._reader.get_batch(number)
            batch.validate()
            if batch.num_rows != self.rows[number]:
                raise ValueError(f"record batch {number} has {batch.num_rows} rows, the layout says {self.rows[number]}")
            found, least = _buffers(batch)
            sizes = [0 if b is None else b.size // dtype.itemsize for b, dtype in zip(found, self.dtypes, strict=True)]
            if (np.array(sizes) < least).any():
                raise ValueError(f"record batch {number} lacks values")
            if any(b is not None and b.address % dtype.itemsize for b, dtype in zip(found, self.dtypes, strict=True)):
                raise ValueError(f"record batch {number} is not aligned")
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{self.file} is damaged or no dataset shard ({error}); make the dataset again") from error
        start, end = self._buffer.address, self._buffer.address + self._buffer.size
        filled = [buffer for buffer in found if buffer is not None and buffer.size]
        return found, np.array(sizes, np.int64), any(not start <= buffer.address < end for buffer in filled)


class Buffers:
    """Where the buffers of all record batches of some shards are, found as they are asked for.

    Attributes:
        files: the shards.
        file_of: int64 [batches], which shard a record batch is of.
        begins: int64 [batches, BUFFERS], where each buffer begins, as an index into `memory` of its dtype; 0: there is none.
        sizes: int64 [batches, BUFFERS], how many elements it has.
    """

    def __init__(self, files: list[ShardFile]) -> None:
        counts = [len(opened.rows) for opened in files]
        self.files = files
        self.file_of = np.repeat(np.arange(len(counts)), counts)
        self._number = np.concatenate([np.zeros(0, np.int64), *(np.arange(count) for count in counts)])
        self.begins = np.zeros((sum(counts), BUFFERS), np.int64)
        self.sizes = np.zeros((sum(counts), BUFFERS), np.int64)
        self._found = np.zeros(sum(counts), np.bool_)
        self._unpacked: OrderedDict[int, tuple[list[pa.Buffer | None], int]] = OrderedDict()
        self._bytes = 0

    def find(self, batches: I64) -> None:
        """Make sure that these record batches are found; unpacked ones stay until the next call."""
        if self._found[batches].all() and not self._unpacked:
            return
        wanted = np.unique(batches).tolist()
        for batch in wanted:
            if not self._found[batch]:
                self._find(batch)
            elif batch in self._unpacked:
                self._unpacked.move_to_end(batch)
        while self._bytes > CACHE_BYTES and len(self._unpacked) > len(wanted):
            batch, (_, size) = self._unpacked.popitem(last=False)
            self._found[batch], self._bytes = False, self._bytes - size

    def _find(self, batch: int) -> None:
        opened = self.files[int(self.file_of[batch])]
        buffers, sizes, unpacked = opened.buffers(int(self._number[batch]))
        self.begins[batch] = [
            0 if buffer is None or not buffer.size else (buffer.address - _PAGE) // dtype.itemsize
            for buffer, dtype in zip(buffers, opened.dtypes, strict=True)
        ]
        self.sizes[batch], self._found[batch] = sizes, True
        if unpacked:
            size = sum(buffer.size for buffer in buffers if buffer is not None)
            self._unpacked[batch] = buffers, size
            self._bytes += size

    def most_predictions(self, memories: list[npt.NDArray[Any]]) -> int:
        """The most predicted positions that a row has in any copy. Reads every offset once."""
        most = 0
        for batch in range(len(self.begins)):
            self.find(np.array([batch]))
            masks, lists = self.begins[batch, [MASK_OFFSETS, POSITION_OFFSETS]].tolist()
            rows = int(self.files[int(self.file_of[batch])].rows[self._number[batch]])
            if masks and lists:
                count = min(int(memories[MASK_OFFSETS][masks + rows]) + 1, int(self.sizes[batch, POSITION_OFFSETS]))
                offsets = memories[POSITION_OFFSETS][lists : lists + max(0, count)]
                most = max(most, int(np.diff(offsets).max(initial=0)))
        return most


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
