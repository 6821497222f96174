"""Table of an artifact's files, for a manifest that would be too large as JSON.

An Arrow file of record batches, which is read only where the files are asked for, a batch at a
time. What most readers need, number and bytes of the files and their hash, is in the manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cloze.core import storage
from cloze.core.errors import DataError

TABLE = "manifest.arrow"
BATCH_FILES = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file of an artifact. `data` is False for logs and metrics, whose bytes contain times."""

    path: str
    size: int
    sha256: str
    data: bool = True


@dataclass(frozen=True, slots=True)
class FileTable:
    """Entries of files; iterating reads them."""

    file: str
    count: int
    size: int  # bytes of all of them
    sha256: str
    content_sha256: str  # see `Manifest.content_sha256`

    @classmethod
    def write(cls, file: str, entries: Sequence[FileEntry], content_sha256: str) -> FileTable:
        import pyarrow as pa

        fields = [("path", pa.string()), ("size", pa.int64()), ("sha256", pa.binary(32))]
        schema = pa.schema([*fields, ("data", pa.bool_())])
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(sink, schema, options=options) as writer:
            for begin in range(0, len(entries), BATCH_FILES):
                some = map(asdict, entries[begin : begin + BATCH_FILES])
                rows = [{**row, "sha256": bytes.fromhex(row["sha256"])} for row in some]
                writer.write_batch(pa.RecordBatch.from_pylist(rows, schema))
        content = sink.getvalue().to_pybytes()
        storage.write_bytes(file, content)
        size, sha256 = sum(entry.size for entry in entries), hashlib.sha256(content).hexdigest()
        return cls(file, len(entries), size, sha256, content_sha256)

    def facts(self) -> dict[str, Any]:
        """Return what a manifest has instead of the files."""
        return {"count": self.count, "size": self.size, "sha256": self.sha256}

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[FileEntry]:
        """Yield the entries.

        Raises DataError: the table is missing or damaged.
        """
        import pyarrow as pa

        try:
            content = storage.read_at_once(self.file)
        except FileNotFoundError:
            content = b""
        if hashlib.sha256(content).hexdigest() != self.sha256:
            state = "does not have the sha256 that the manifest says" if content else "is missing"
            raise DataError(f"{self.file} {state}; remove the directory and run the stage again")
        reader = pa.ipc.open_file(pa.BufferReader(content))
        for number in range(reader.num_record_batches):
            columns = (column.to_pylist() for column in reader.get_batch(number).columns)
            for path, size, sha256, is_data in zip(*columns, strict=True):
                yield FileEntry(path=path, size=size, sha256=sha256.hex(), data=is_data)
