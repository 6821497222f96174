"""The corpus artifact as its readers see it: shards of documents in the order of their keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core import artifact, storage
from pipeline.core.arrow import read_arrow
from pipeline.core.errors import DataError
from pipeline.core.ragged import I64
from pipeline.core.random_keys import U64
from pipeline.corpus.schema import CORPUS

STAGES = ("corpus", "semdedup")
"""The stages that make one."""

READ = ("key", "id", "split", "sentences")
"""The columns that later stages read; shards of every version of the schema have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusShards:
    """A finished corpus artifact.

    Attributes:
        path: its directory.
        names: its shards, sorted.
        sizes: their bytes.
    """

    path: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @classmethod
    def open(cls, path: str) -> CorpusShards:
        """Raises `DataError` where `path` holds no finished corpus."""
        manifest = artifact.read_manifest(path)
        shards = (entry for entry in manifest.files if entry.path.startswith("corpus-") and entry.path.endswith(".arrow"))
        files = sorted((entry.path, entry.size) for entry in shards)  # and not what lies in rejected/
        if manifest.stage not in STAGES or not files:
            raise DataError(
                f"{path} holds a {manifest.stage} artifact with {len(files)} Arrow files, not a corpus; name one that `cloze corpus` made"
            )
        return cls(path=path, names=tuple(name for name, _ in files), sizes=tuple(size for _, size in files))

    def file(self, name: str) -> str:
        return storage.join(self.path, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Documents of one shard.

    Attributes:
        keys: uint64 [D].
        sentences: the sentences of all documents, end to end.
        counts: int64 [D], how many each has.
    """

    keys: U64
    sentences: list[str]
    counts: I64


def read_shard(path: str) -> pa.Table:
    """The documents of a corpus shard, sorted by key (and id), so that their order in the file means nothing."""
    table = read_arrow(path)
    missing = [name for name in READ if name not in table.column_names]
    if missing or table.schema.field("sentences").type != CORPUS.field("sentences").type:
        raise DataError(
            f"{path} is no corpus shard (it lacks {', '.join(missing) or 'a list of sentences'}); make one with `cloze corpus`"
        )
    keys = table["key"].to_numpy()
    if len(keys) > 1 and not (keys[1:] > keys[:-1]).all():
        table = table.take(pc.sort_indices(table, [("key", "ascending"), ("id", "ascending")]))
    return table


def completed(table: pa.Table) -> pa.Table:
    """A shard of any version of the schema with all columns of CORPUS, those that it lacks empty in every document."""

    def empty(kind: pa.DataType) -> pa.Array:
        return pa.array([[] if pa.types.is_list(kind) else ""] * table.num_rows, kind)

    columns = [table[field.name] if field.name in table.column_names else empty(field.type) for field in CORPUS]
    return pa.table(columns, schema=CORPUS)


def texts(table: pa.Table, chosen: npt.NDArray[np.bool_]) -> Texts:
    """The chosen documents of a shard."""
    picked = table.filter(pa.array(chosen))
    sentences = picked["sentences"].combine_chunks()
    return Texts(
        keys=picked["key"].to_numpy(),
        sentences=sentences.flatten().to_pylist(),
        counts=pc.list_value_length(sentences).to_numpy(zero_copy_only=False).astype(np.int64),
    )


def text_bytes(table: pa.Table) -> I64:
    """UTF-8 bytes of each document's sentences: int64 [D]."""
    sizes = []
    for chunk in table["sentences"].chunks:
        ends = np.concatenate([[0], np.cumsum(pc.binary_length(chunk.values).to_numpy(zero_copy_only=False), dtype=np.int64)])
        sizes.append(np.diff(ends[chunk.offsets.to_numpy()]))
    return np.concatenate([np.zeros(0, np.int64), *sizes]).astype(np.int64)


def in_split(table: pa.Table, split: str) -> npt.NDArray[np.bool_]:
    """Which documents are of `split`: bool [D]."""
    found: npt.NDArray[np.bool_] = pc.equal(table["split"], split).to_numpy()
    return found
