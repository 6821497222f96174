"""Corpus stage: how a part's files are written: rows gathered, sorted by place within a run, and cut into batches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core import storage
from pipeline.corpus.parts import REJECTED, compact_batch, place
from pipeline.corpus.schema import PART

RUN_BYTES = 32 << 20
BATCH_BYTES = 1 << 20
CHUNK_DOCUMENTS = 1 << 10


class Runs:
    """Rows on their way into a part: gathered, sorted by place within a run, and cut into batches.

    `add` and `close` give the batches that are ready.
    """

    def __init__(self, arrow_schema: pa.Schema, run_bytes: int = RUN_BYTES) -> None:
        self.schema, self.run_bytes = arrow_schema, run_bytes
        self._rows: list[dict[str, Any]] = []
        self._chunks: list[pa.RecordBatch] = []
        self._size = self._pending = 0

    def add(self, row: dict[str, Any], size: int) -> Iterator[pa.RecordBatch]:
        """Args: size: of its text, in bytes."""
        self._rows.append(row)
        self._pending += size
        if self._pending >= BATCH_BYTES or len(self._rows) >= CHUNK_DOCUMENTS:
            self._pack()
        if self._size >= self.run_bytes:
            yield from self._flush()

    def close(self) -> Iterator[pa.RecordBatch]:
        """The rest."""
        self._pack()
        yield from self._flush()

    def _pack(self) -> None:
        if self._rows:
            columns = [pa.array([row[field.name] for row in self._rows], field.type) for field in self.schema]
            self._chunks.append(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        self._size += self._pending
        self._rows, self._pending = [], 0

    def _flush(self) -> Iterator[pa.RecordBatch]:
        chunks, self._chunks = self._chunks, []
        size, self._size = self._size, 0
        if not chunks:
            return
        key = np.concatenate([chunk["key"].to_numpy() for chunk in chunks])
        order = np.argsort(place(key), kind="stable")
        table = pa.Table.from_batches(chunks).combine_chunks()
        del chunks
        rows = max(1, int(len(order) * BATCH_BYTES / max(size, 1)))
        for begin in range(0, len(order), rows):
            chosen = order[begin : begin + rows]
            yield compact_batch(table.take(pa.array(chosen)), self.schema)


class PartWriter:
    """The three files of a part, written together, and there only if all of it went well."""

    def __init__(self, path: str, references: pa.Schema, keep_rejected: bool) -> None:
        self._stack = contextlib.ExitStack()
        self._names = {f"{path}.arrow": PART, f"{path}.refs.arrow": references}
        self._references = references
        self._rejects = f"{path}.rejected.arrow" if keep_rejected else None
        self._runs = Runs(pa.schema([*PART, *(field for field in references if field.name != "key")]))
        self._rejected = Runs(REJECTED)
        self._files: list[Any] = []
        self.documents = self.bytes = 0

    def __enter__(self) -> PartWriter:
        names = {**self._names, **({self._rejects: REJECTED} if self._rejects else {})}
        for name, arrow_schema in names.items():
            handle = self._stack.enter_context(storage.atomic_output(name))
            self._files.append(self._stack.enter_context(pa.ipc.new_file(handle, arrow_schema)))
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def finish(self) -> None:
        """Write what is still held."""
        self._write(self._runs.close())
        self._write_rejected(self._rejected.close())

    def add(self, row: dict[str, Any]) -> None:
        self.documents += 1
        self.bytes += row["bytes"]
        self._write(self._runs.add(row, row["bytes"]))

    def reject(self, row: dict[str, Any]) -> None:
        self._write_rejected(self._rejected.add(row, len(row["text"])))

    def _write(self, batches: Iterator[pa.RecordBatch]) -> None:
        for batch in batches:
            for file, arrow_schema in zip(self._files, (PART, self._references), strict=False):
                columns = [batch[name] for name in arrow_schema.names]
                file.write_batch(pa.RecordBatch.from_arrays(columns, schema=arrow_schema))

    def _write_rejected(self, batches: Iterator[pa.RecordBatch]) -> None:
        for batch in batches:
            self._files[2].write_batch(batch)
