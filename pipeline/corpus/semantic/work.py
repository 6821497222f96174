"""Stage semdedup: its units of work. One function a step.

    AssignShard    a corpus shard and its vectors -> key, length and cluster of each document
    (the driver sorts them by cluster)
    FindSimilar    some clusters -> which of their documents go, and for which
    (the driver sorts those by shard)
    WriteKept      a corpus shard -> the shard without them

No process holds all vectors. What a unit gives follows from the unit alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.core import storage, unit_vectors
from pipeline.core.arrow import open_arrow, read_arrow, write_arrow
from pipeline.core.errors import DataError
from pipeline.core.ragged import I64
from pipeline.core.shards import HELDOUT
from pipeline.core.unit_vectors import I16
from pipeline.corpus.parts import compact_batch
from pipeline.corpus.schema import CORPUS
from pipeline.corpus.semantic.clusters import assign, centred
from pipeline.corpus.semantic.similar import counted, find_similar
from pipeline.corpus.shards import completed, in_split, read_shard, text_bytes
from pipeline.corpus.statistics import measure

ASSIGNED = pa.schema([("key", pa.uint64()), ("bytes", pa.int64()), ("cluster", pa.int32())])
MEMBERS = pa.schema([("key", pa.uint64()), ("cluster", pa.int32()), ("shard", pa.int32()), ("row", pa.int32())])
FOUND = pa.schema(
    [("key", pa.uint64()), ("of", pa.uint64()), ("cosine", pa.float32())]
    + [(name, pa.int32()) for name in ("shard", "row", "of_shard", "of_row")]
)
DUPLICATES = pa.schema([pa.field(name, FOUND.field(name).type, nullable=False) for name in ("key", "of", "cosine")])
LIMITS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.96, 0.98, 0.99)


def batch_of(schema: pa.Schema, *columns: npt.NDArray[Any]) -> pa.RecordBatch:
    """A record batch of these columns."""
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def vectors_of(path: str, mean: Sequence[int] | None) -> tuple[npt.NDArray[np.uint64], I16]:
    """Keys and vectors of a file, without their mean if there is one."""
    keys, vectors = unit_vectors.read(path)
    return keys, vectors if mean is None else centred(vectors, np.array(mean, np.int16))


@dataclass(frozen=True, kw_only=True)
class AssignShard:
    """A unit is {"corpus": shard, "vectors": file, "out": file}.

    Attributes:
        centres: the file of the clusters' centres.
        mean: of the vectors, which is taken from them; None: they stay.
    """

    centres: str
    mean: tuple[int, ...] | None

    def __call__(self, unit: dict[str, str]) -> dict[str, Any]:
        table = read_shard(unit["corpus"])
        keys, vectors = vectors_of(unit["vectors"], self.mean)
        if not np.array_equal(keys, table["key"].to_numpy()):
            raise DataError(
                f"{unit['vectors']} is not of the documents of {unit['corpus']}; make it again with `cloze vectors`"
            )
        clusters = assign(vectors, unit_vectors.read(self.centres)[1])
        write_arrow(unit["out"], ASSIGNED, [batch_of(ASSIGNED, keys, text_bytes(table), clusters)])
        return {}


@dataclass(frozen=True, kw_only=True)
class FindSimilar:
    """A unit is {"number": of the batch of members, "out": file}. Returns how many documents have which highest cosine.

    Attributes:
        members: the file of the clusters' members, those that stay first.
        vectors: the files, by number of the shard.
        mean: as in `AssignShard`.
        threshold: of the cosine.
    """

    members: str
    vectors: tuple[str, ...]
    mean: tuple[int, ...] | None
    threshold: float

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        members = open_arrow(self.members).get_batch(unit["number"])
        key, cluster, shard, row = (members[name].to_numpy() for name in MEMBERS.names)
        held = self._gather(shard, row)
        of, best = np.arange(len(key), dtype=np.int64), np.full(len(key), -1.0, np.float32)
        edges = [0, *(np.flatnonzero(cluster[1:] != cluster[:-1]) + 1).tolist(), len(cluster)]
        for begin, end in zip(edges[:-1], edges[1:], strict=True):
            found, best[begin:end] = find_similar(held[begin:end], self.threshold)
            of[begin:end] = begin + found
        gone = np.flatnonzero(of != np.arange(len(of)))
        stays = of[gone]
        columns = (key[gone], key[stays], best[gone], shard[gone], row[gone], shard[stays], row[stays])
        write_arrow(unit["out"], FOUND, [batch_of(FOUND, *columns)])
        return {"documents": len(gone), "cosines": counted(best, LIMITS)}

    def _gather(self, shard: npt.NDArray[np.int32], row: npt.NDArray[np.int32]) -> I16:
        held: I16 | None = None
        for number in np.unique(shard).tolist():
            chosen = np.flatnonzero(shard == number)
            vectors = unit_vectors.read(self.vectors[number])[1][row[chosen]]
            held = np.zeros((len(shard), vectors.shape[1]), np.int16) if held is None else held
            held[chosen] = vectors if self.mean is None else centred(vectors, np.array(self.mean, np.int16))
        return np.zeros((0, 1), np.int16) if held is None else held


@dataclass(frozen=True, kw_only=True)
class WriteKept:
    """A unit is {"number": of the shard, "corpus": shard, "out": file}. Returns the shard's statistics.

    Attributes:
        duplicates: the file of what goes, a record batch a shard.
        documents: that stay, of the whole corpus.
    """

    duplicates: str
    documents: int

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        gone = open_arrow(self.duplicates).get_batch(unit["number"])["key"].to_numpy()
        table = completed(read_shard(unit["corpus"]))
        table = table.filter(pa.array(~np.isin(table["key"].to_numpy(), gone)))
        batch = compact_batch(table, CORPUS)
        write_arrow(unit["out"], CORPUS, [batch])
        return {**measure(batch, self.documents), "heldout": int(in_split(table, HELDOUT).sum())}


def ranked(size: I64, key: npt.NDArray[np.uint64], cluster: npt.NDArray[np.int32]) -> I64:
    """int64 [n]: the documents by cluster, in each the longest first, equally long ones by key."""
    return np.lexsort((key, -size, cluster)).astype(np.int64)


def found_in(paths: Sequence[str]) -> pa.Table:
    """What the units of `FindSimilar` wrote, by shard and key."""
    table = pa.concat_tables([FOUND.empty_table(), *map(read_arrow, paths)]).combine_chunks()
    return table.sort_by([("shard", "ascending"), ("key", "ascending")])


def scratch(build_scratch: str, name: str) -> str:
    """A file of the stage's own."""
    return storage.join(build_scratch, "files", name)
