"""Stage "dataset", around its first step: which documents a dataset holds, so that a later one can be appended to it.

Enter: corpus shards. Leave: their parts, of the documents that are not in the dataset already, and the documents' keys:
`documents.arrow`, one column `key`, ascending, whose record batches each hold one equal range of the keys.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.core import storage
from pipeline.core.arrow import open_arrow, read_arrow, write_arrow
from pipeline.core.random_keys import U64
from pipeline.corpus.shards import read_shard
from pipeline.dataset.ranks import bucket_borders
from pipeline.dataset.row_parts import MakePart

DOCUMENTS = "documents"  # opens the files' names
BATCH_KEYS = 1 << 20  # of a record batch, about
SCHEMA = pa.schema([pa.field("key", pa.uint64(), nullable=False)])


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeNewPart:
    """Corpus shard -> part, without the documents that stand in `known`, and the keys of those that stay.

    A unit is {"number": n, "path": corpus shard}. Its result is `MakePart`'s, and says beside how many documents stay
    (`documents`), and how many were left out (`known`).

    Attributes:
        make_part: makes the part.
        known: files of keys.
        stamp: the fingerprint of the dataset that they are of.
    """

    make_part: MakePart
    known: tuple[str, ...]
    stamp: str

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        table = read_shard(unit["path"])
        keys = table["key"].to_numpy()
        left_out = known(keys, self.known, self.stamp)
        write_arrow(keys_path(self.make_part.directory, unit["number"]), SCHEMA, [_batch(keys[~left_out])])
        new = table.filter(pa.array(~left_out)) if left_out.any() else table
        made = self.make_part(unit["number"], new)
        return {**made, "documents": int((~left_out).sum()), "known": int(left_out.sum())}


def keys_path(directory: str, number: int) -> str:
    return storage.join(directory, f"{DOCUMENTS}-{number:05d}.arrow")


def _batch(keys: U64) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(np.unique(keys))], schema=SCHEMA)


def write_documents(path: str, directory: str, parts: int, total: int) -> None:
    """Merge the parts' keys into one file, a range of keys at a time.

    Args:
        path: of the file.
        directory: of the parts.
        parts: how many there are.
        total: how many documents they have.
    """
    sources = [read_arrow(keys_path(directory, number))["key"].to_numpy() for number in range(parts)]
    ranges = max(1, -(-total // BATCH_KEYS))
    borders = [bucket_borders(keys, ranges, 0, ranges) for keys in sources]

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(ranges):
            pieces = [keys[begins[number] : begins[number + 1]] for keys, begins in zip(sources, borders, strict=True)]
            yield _batch(np.concatenate([np.zeros(0, np.uint64), *pieces]))

    write_arrow(path, SCHEMA, batches())


def known(keys: U64, files: Sequence[str], stamp: str) -> npt.NDArray[np.bool_]:
    """Which of the keys stand in one of the files: bool [D]. The files' record batches are equal ranges of the keys."""
    found = np.zeros(len(keys), np.bool_)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    for file in files:
        batches = _key_batches(file, stamp)
        begins = bucket_borders(ordered, len(batches), 0, len(batches))
        for number, (low, high) in enumerate(zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True)):
            there = batches[number]
            if low < high and len(there):
                wanted = ordered[low:high]
                at = np.minimum(np.searchsorted(there, wanted), len(there) - 1)
                found[order[low:high]] |= there[at] == wanted
    return found


@functools.lru_cache(maxsize=64)
def _key_batches(file: str, stamp: str) -> tuple[U64, ...]:
    reader = open_arrow(file)
    return tuple(reader.get_batch(number)["key"].to_numpy() for number in range(reader.num_record_batches))
