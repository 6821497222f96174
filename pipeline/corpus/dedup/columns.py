"""Corpus stage: the references of all parts, a flat file a column on the local disk, loaded a column at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.corpus.dedup.duplicates import I32, I64
from pipeline.corpus.parts import PartFile


class Columns:
    """The references of all parts, a flat file a column.

    Attributes:
        count: documents.
        begins: int64 [parts + 1], the number of each part's first document.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.begins: I64 = np.zeros(1, dtype=np.int64)
        self._batch_begins: I64 = np.zeros(0, dtype=np.int64)
        self._batch_numbers: I32 = np.zeros(0, dtype=np.int32)
        self._types: dict[str, np.dtype[Any]] = {}

    @property
    def count(self) -> int:
        return int(self.begins[-1])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._types)

    def gather(self, paths: Sequence[str], report: Callable[[int], None] = lambda _: None) -> None:
        """Copy the references files at `paths`, a part each, in their order."""
        files: dict[str, Any] = {}
        begins, batch_begins, batch_numbers, total = [0], [], [], 0
        try:
            for number, path in enumerate(paths):
                with PartFile(path) as part:
                    for batch_number in range(part.batches):
                        batch = part.batch(batch_number)
                        batch_begins.append(total)
                        batch_numbers.append(batch_number)
                        total += batch.num_rows
                        for name in batch.schema.names:
                            values = flat(batch[name])
                            if name not in files:
                                files[name] = open(os.path.join(self.directory, name), "wb")  # noqa: SIM115 (closed below)
                                self._types[name] = np.dtype((values.dtype, values.shape[1:]))
                            values.tofile(files[name])
                begins.append(total)
                report(number + 1)
        finally:
            for file in files.values():
                file.close()
        self.begins = np.array(begins, dtype=np.int64)
        self._batch_begins = np.array(batch_begins, dtype=np.int64)
        self._batch_numbers = np.array(batch_numbers, dtype=np.int32)

    def load(self, name: str) -> npt.NDArray[Any]:
        """A whole column."""
        if not self.count:
            return np.zeros(0, dtype=np.uint64)
        kind = self._types[name]
        return np.fromfile(os.path.join(self.directory, name), dtype=kind)

    def ranked(self, name: str, by_rank: I64) -> npt.NDArray[Any]:
        """A column in the order of `by_rank`; it is kept in that order, too, for the next time."""
        path = os.path.join(self.directory, f"ranked_{name}")
        if os.path.exists(path):
            return np.fromfile(path, dtype=self._types[name])
        values = self.load(name)
        values = values[by_rank]
        values.tofile(path)
        return values

    def mapped(self, name: str) -> npt.NDArray[Any]:
        """A column on the disk, of which a few rows are wanted."""
        if not self.count:
            return np.zeros((0, 1), dtype=np.uint8)
        kind = self._types[name]
        return np.memmap(os.path.join(self.directory, name), dtype=kind.base, mode="r", shape=(self.count, *kind.shape))

    def where(self, numbers: I64) -> tuple[I32, I32, I32]:
        """Part, batch and row of the documents of these numbers."""
        at = np.searchsorted(self._batch_begins, numbers, side="right") - 1
        part = np.searchsorted(self.begins, numbers, side="right") - 1
        row = numbers - self._batch_begins[at]
        return part.astype(np.int32), self._batch_numbers[at], row.astype(np.int32)


def flat(column: pa.Array) -> npt.NDArray[Any]:
    """[n], or uint8 [n, width] for fixed-size bytes."""
    if pa.types.is_fixed_size_binary(column.type):
        width = column.type.byte_width
        data = np.frombuffer(column.buffers()[1], dtype=np.uint8)
        return data[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)
    return np.asarray(column.to_numpy(zero_copy_only=False))
