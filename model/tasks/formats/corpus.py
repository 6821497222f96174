"""The documents of a corpus artifact, for tasks that are made from one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.core import storage
from pipeline.core.errors import DataError


def documents(path: str, columns: Sequence[str], source: str | None = None) -> Iterator[tuple[Any, ...]]:
    """The values of `columns` of every document, heavy text one record batch at a time.

    Args:
        source: of the documents that are wanted; None: all are.

    Raises:
        DataError: `path` holds no corpus, or a shard is no Arrow file.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    names = [name for name in storage.list_files(path) if name.startswith("corpus-") and name.endswith(".arrow")]
    if not names:
        raise DataError(f"{path} holds no corpus (no file corpus-*.arrow); name the artifact that `cloze corpus` made")
    for name in sorted(names):
        with storage.open_input(storage.join(path, name)) as handle:
            try:
                reader = pa.ipc.open_file(handle)
            except pa.ArrowInvalid as error:
                raise DataError(f"{storage.join(path, name)} is no Arrow file ({error}); run `cloze corpus` again") from error
            for i in range(reader.num_record_batches):
                batch = reader.get_batch(i)
                chosen = batch if source is None else batch.filter(pc.equal(batch.column("source"), source))
                yield from zip(*(chosen.column(column).to_pylist() for column in columns), strict=True)
