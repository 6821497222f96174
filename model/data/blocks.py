"""The record batches of a split's shards, found as they are asked for.

A shard without compression is a memory map, and its buffers are found the first time that a row of their record batch is asked
for. Of a compressed one the record batches asked for are unpacked, and the last ones kept, within `CACHE_BYTES`.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from model.data.files import BUFFERS, ID_OFFSETS, MASK_OFFSETS, POSITION_OFFSETS, RecordBatch, ShardFile
from pipeline.core.ragged import I64

CACHE_BYTES = 256 << 20  # of unpacked record batches


class Blocks:
    """Record batches, numbered over all files.

    Attributes:
        files: the shards.
        file_of: int64 [batches], which shard a record batch is of.
        begins: int64 [batches, BUFFERS], and sizes, of those found: see `RecordBatch`.
        group: int64 [batches], of those found: equal where the arrays are the same.
    """

    def __init__(self, files: list[ShardFile]) -> None:
        counts = [len(opened.rows) for opened in files]
        self.files = files
        self.file_of = np.repeat(np.arange(len(counts)), counts)
        self._number = np.concatenate([np.zeros(0, np.int64), *(np.arange(count) for count in counts)])
        self.begins = np.zeros((sum(counts), BUFFERS), np.int64)
        self.sizes = np.zeros((sum(counts), BUFFERS), np.int64)
        self.group = np.zeros(sum(counts), np.int64)
        self._is_found = np.zeros(sum(counts), np.bool_)
        self._found: dict[int, RecordBatch] = {}
        self._unpacked: OrderedDict[int, int] = OrderedDict()  # record batch -> bytes, the least lately used first
        self.unpacked_bytes = 0

    def __getitem__(self, batch: int) -> RecordBatch:
        """A record batch that is found."""
        return self._found[batch]

    def find(self, batches: I64) -> None:
        """Make sure that these record batches are found; unpacked ones stay until the next call.

        Raises:
            DataError: one of them is damaged.
        """
        if self._is_found[batches].all() and not self._unpacked:
            return
        wanted = np.unique(batches).tolist()
        for batch in wanted:
            if not self._is_found[batch]:
                self._find(batch)
            elif batch in self._unpacked:
                self._unpacked.move_to_end(batch)
        while self.unpacked_bytes > CACHE_BYTES and len(self._unpacked) > len(wanted):
            batch, size = self._unpacked.popitem(last=False)
            del self._found[batch]
            self._is_found[batch], self.unpacked_bytes = False, self.unpacked_bytes - size

    def _find(self, batch: int) -> None:
        file = int(self.file_of[batch])
        found = self.files[file].record_batch(int(self._number[batch]))
        self.begins[batch], self.sizes[batch] = found.begins, found.sizes
        self.group[batch] = len(self.files) + batch if found.unpacked else file
        self._found[batch], self._is_found[batch] = found, True
        if found.unpacked:
            self._unpacked[batch] = found.unpacked
            self.unpacked_bytes += found.unpacked

    def tokens(self) -> int:
        """Token ids of all rows."""
        found = 0
        for batch, file in enumerate(self.file_of.tolist()):
            self.find(np.array([batch]))
            offsets, begin = self._found[batch].arrays[ID_OFFSETS], int(self._found[batch].begins[ID_OFFSETS])
            rows = int(self.files[file].rows[self._number[batch]])
            found += int(offsets[begin + rows]) - int(offsets[begin])
        return found

    def most_predictions(self) -> int:
        """The most predicted positions that a row has in any copy. Reads every offset once."""
        most = 0
        for batch in range(len(self._number)):
            self.find(np.array([batch]))
            found = self._found[batch]
            rows = int(self.files[int(self.file_of[batch])].rows[self._number[batch]])
            if found.sizes[MASK_OFFSETS] > rows:
                masks = int(found.arrays[MASK_OFFSETS][found.begins[MASK_OFFSETS] + rows])
                count = max(0, min(masks + 1, int(found.sizes[POSITION_OFFSETS])))
                begin = int(found.begins[POSITION_OFFSETS])
                offsets = found.arrays[POSITION_OFFSETS][begin : begin + count]
                most = max(most, int(np.diff(offsets).max(initial=0)))
        return most
