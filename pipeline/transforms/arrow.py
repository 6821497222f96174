"""Arrow IPC files through the one filesystem layer: memory-mapped on a local disk, read whole from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from pipeline import storage
from pipeline.errors import DataError


def read_arrow(path: str) -> pa.Table:
    """The table in the Arrow IPC file at `path`; `DataError` if there is none, or it is damaged."""
    if not storage.exists(path):
        raise DataError(f"{path} does not exist; run the stage that makes it again")
    try:
        if storage.is_local(path):
            return pa.ipc.open_file(pa.memory_map(storage.filesystem(path)[1])).read_all()
        with storage.open_input(path) as handle:
            return pa.ipc.open_file(pa.BufferReader(handle.read())).read_all()
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is damaged ({str(error).splitlines()[0]}); run the stage that makes it again") from error


def write_arrow(path: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write an uncompressed Arrow IPC file, whole or not at all, so that readers can map it into memory."""
    with storage.atomic_output(path) as handle, pa.ipc.new_file(handle, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
