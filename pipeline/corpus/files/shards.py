"""Readers' view of the corpus artifact: shards of documents sorted by key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cloze.core import storage
from cloze.core.arrow import read_arrow
from cloze.core.artifacts import artifact
from cloze.core.errors import DataError
from cloze.core.humanize import an
from cloze.core.plugins import with_substitutes
from cloze.core.ragged import I64, offsets_of
from cloze.core.random_keys import U64
from cloze.pipeline.corpus.files.intermediate import CORPUS
from cloze.pipeline.runners.sizes import (
    EVEN_COUNTS,
    LEAST_BYTES,
    group_by_size,
    least_bytes,
    places_per_unit,
    run_bytes,
)

READ = ("key", "id", "split", "sentences")
"""Columns that later stages read; every version of the schema has them."""


class ShardGroup(NamedTuple):
    """Consecutive shards that are one unit's work; `size` in bytes."""

    name: str
    paths: list[str]
    size: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusShards:
    """A finished corpus artifact."""

    path: str
    names: tuple[str, ...]  # shard file names, sorted
    sizes: tuple[int, ...]  # bytes per shard
    documents: int = 0  # number of documents
    words: int | None = None  # words of all documents; None: unknown

    @classmethod
    def open(cls, path: str) -> CorpusShards:
        """Open the corpus in directory `path`.

        Raises:
            DataError: no finished corpus there.
        """
        manifest = artifact.read_manifest(path)
        shards = (
            entry
            for entry in manifest.files
            if entry.path.startswith("corpus-") and entry.path.endswith(".arrow")
        )
        files = sorted((entry.path, entry.size) for entry in shards)  # without dropped/
        if manifest.stage not in with_substitutes(("corpus",)) or not files:
            raise DataError(
                f"{path} contains {an(manifest.stage)} artifact with {len(files)} Arrow files, not "
                f"a corpus; name one that `cloze corpus` made"
            )
        return cls(
            path=path,
            names=tuple(name for name, _ in files),
            sizes=tuple(size for _, size in files),
            documents=manifest.rows,
            words=manifest.summary.get("words"),
        )

    def file(self, name: str) -> str:
        return storage.join(self.path, name)

    def groups(self, directory: str, least: int = LEAST_BYTES) -> list[ShardGroup]:
        """Return the shards of each unit whose files are in `directory`.

        Args:
            least: bytes of a unit on a disk, if there are so many.
        """
        total, count = sum(self.sizes), len(self.sizes)
        most = run_bytes(total, least_bytes(directory, least))
        edges = group_by_size(self.sizes, most)
        if count in EVEN_COUNTS:
            size = places_per_unit(count, total // most)
            edges = [(first, first + size) for first in range(0, count, size)]
        return [
            ShardGroup(
                name=f"{first:05d}-{end:05d}",
                paths=list(map(self.file, self.names[first:end])),
                size=float(sum(self.sizes[first:end])),
            )
            for first, end in edges
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Documents of one shard."""

    keys: U64  # uint64 [D]
    sentences: list[str]  # sentences of all documents, concatenated
    counts: I64  # int64 [D], sentences per document


def read_shard(path: str) -> pa.Table:
    """Read a corpus shard; documents are sorted by key, then id, whatever their order in the file.

    Raises:
        DataError: the file is not a corpus shard.
    """
    table = read_arrow(path)
    missing = [name for name in READ if name not in table.column_names]
    if missing or table.schema.field("sentences").type != CORPUS.field("sentences").type:
        raise DataError(
            f"{path} is no corpus shard (it lacks {', '.join(missing) or 'a list of sentences'}); "
            f"make one with `cloze corpus`"
        )
    keys = table["key"].to_numpy()
    if len(keys) > 1 and not (keys[1:] > keys[:-1]).all():
        table = table.take(pc.sort_indices(table, [("key", "ascending"), ("id", "ascending")]))
    return table


def fill_missing_columns(table: pa.Table) -> pa.Table:
    """Return the shard with all columns of CORPUS; missing columns are empty."""

    def empty(kind: pa.DataType) -> pa.Array:
        return pa.array([[] if pa.types.is_list(kind) else ""] * table.num_rows, kind)

    columns = [
        table[field.name] if field.name in table.column_names else empty(field.type)
        for field in CORPUS
    ]
    return pa.table(columns, schema=CORPUS)


def texts(table: pa.Table, selected: npt.NDArray[np.bool_]) -> Texts:
    """Return the chosen documents of a shard."""
    picked = table.filter(pa.array(selected))
    sentences = picked["sentences"].combine_chunks()
    return Texts(
        keys=picked["key"].to_numpy(),
        sentences=sentences.flatten().to_pylist(),
        counts=pc.list_value_length(sentences).to_numpy(zero_copy_only=False).astype(np.int64),
    )


def text_bytes(table: pa.Table) -> I64:
    """Return the UTF-8 bytes of each document's sentences, int64 [D]."""
    sizes = []
    for chunk in table["sentences"].chunks:
        ends = offsets_of(pc.binary_length(chunk.values).to_numpy(zero_copy_only=False))
        sizes.append(np.diff(ends[chunk.offsets.to_numpy()]))
    return np.concatenate([np.zeros(0, np.int64), *sizes]).astype(np.int64)


def in_split(table: pa.Table, split: str) -> npt.NDArray[np.bool_]:
    """Return which documents are in `split`, bool [D]."""
    selected: npt.NDArray[np.bool_] = pc.equal(table["split"], split).to_numpy()
    return selected
