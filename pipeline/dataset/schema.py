"""What a dataset shard is: its Arrow schema, what it says of its rows, and how they lie in its record batches.

Shards are plain Arrow IPC files that pyarrow, `datasets`, polars and duckdb open without this project.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core.errors import DataError, UsageError
from pipeline.core.ragged import I64
from pipeline.tokenizer.special import SpecialTokens

VERSION = 1
LAYOUT_KEY = b"cloze.layout"
NO_PAIR = -100  # in a batch: a row without a pair label; torch's usual ignore index


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo:
    """What a reader must know of a dataset's rows; lies as JSON in every shard's schema metadata.

    Attributes:
        recipe: its name in `pipeline.dataset.recipes.table.RECIPES`.
        length: the most tokens a row holds.
        copies: masks a row.
        vocab_size: V.
        special: ids of the special tokens.
        pair_task: what pair labels mean: nsp, sop, or None for rows without labels.
        seed: of all random numbers; with a row's `source` it gives the row's key.
        tokenizer: fingerprint of the tokenizer.
        packed: a row holds several sequences that must not see each other; the column `boundaries` says where they begin.
        masks: how the stored masks were drawn (`pipeline.dataset.masking.MaskConfig.as_dict`), so that fresh ones
            can be drawn in the same way; None where nothing is known of it.
    """

    recipe: str
    length: int
    copies: int
    vocab_size: int
    special: SpecialTokens
    pair_task: str | None
    seed: int
    tokenizer: str
    packed: bool = False
    masks: dict[str, Any] | None = None
    version: int = VERSION

    def to_metadata(self) -> dict[bytes, bytes]:
        return {b"cloze.dataset": json.dumps(asdict(self), sort_keys=True).encode()}

    @classmethod
    def from_schema(cls, schema: pa.Schema, name: str) -> DatasetInfo:
        """Read it back; `DataError` if `name` is no dataset shard."""
        content = (schema.metadata or {}).get(b"cloze.dataset")
        if content is None:
            raise DataError(
                f"{name} is no Cloze dataset shard (its schema lacks the key cloze.dataset); make one with `cloze dataset`"
            )
        values = json.loads(content)
        if values.get("version") != VERSION:
            raise DataError(f"{name} has dataset version {values.get('version')}, this program reads {VERSION}; make it again")
        values["special"] = SpecialTokens(**values["special"])
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLayout:
    """How the rows of a shard lie in its record batches, so that a reader finds any row without looking at the others.

    Rows of a shard stand in bins of length, the shortest first, and in each bin in the order of their hash; a record batch
    holds rows of one bin alone and a fixed number of them, but for the bin's last. One bin is the plain case. Lies as
    JSON in the schema's metadata under `cloze.layout`, where other programs pass it by.

    Attributes:
        borders: the most tokens of a row in each bin.
        rows: rows in each bin.
        batch_rows: rows of a record batch, the last of each bin excepted.
        compression: of the buffers: zstd, lz4 or None.
    """

    borders: tuple[int, ...]
    rows: tuple[int, ...]
    batch_rows: int
    compression: str | None = None

    def to_metadata(self) -> dict[bytes, bytes]:
        return {LAYOUT_KEY: json.dumps(asdict(self), sort_keys=True).encode()}

    @classmethod
    def from_schema(cls, schema: pa.Schema, name: str) -> ShardLayout | None:
        """Read it back; None where a shard was written without one, `DataError` where it is damaged."""
        content = (schema.metadata or {}).get(LAYOUT_KEY)
        if content is None:
            return None
        try:
            values = json.loads(content)
            found = cls(
                borders=tuple(map(int, values["borders"])),
                rows=tuple(map(int, values["rows"])),
                batch_rows=int(values["batch_rows"]),
                compression=values.get("compression"),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{name} is damaged (its layout cannot be read); make the dataset again") from error
        if len(found.rows) != len(found.borders) or found.batch_rows < 1 or min(found.rows, default=0) < 0:
            raise DataError(f"{name} is damaged (its layout contradicts itself); make the dataset again")
        return found

    def batches(self) -> tuple[I64, I64]:
        """Rows of each record batch, and the bin that they are of: int64 [batches] twice."""
        counts = -(-np.asarray(self.rows, np.int64) // self.batch_rows)
        bins = np.repeat(np.arange(len(self.rows)), counts)
        sizes = np.full(len(bins), self.batch_rows, np.int64)
        last = np.cumsum(counts)[counts > 0] - 1
        sizes[last] = (np.asarray(self.rows, np.int64)[counts > 0] - 1) % self.batch_rows + 1
        return sizes, bins


def id_dtype(vocab_size: int, wanted: str = "auto") -> np.dtype[Any]:
    """The smallest dtype that holds the ids of a vocabulary, or the `wanted` one if it does.

    Raises:
        UsageError: `wanted` is too small for the vocabulary.
    """
    fits: np.dtype[Any] = np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)
    if wanted == "auto":
        return fits
    dtype: np.dtype[Any] = np.dtype(wanted)
    if vocab_size > np.iinfo(dtype).max + 1:
        raise UsageError(
            f"id_type ({wanted}) holds {np.iinfo(dtype).max + 1:,} ids, the vocabulary has {vocab_size:,}; use uint32"
        )
    return dtype


def dataset_schema(info: DatasetInfo, ids: np.dtype[Any]) -> pa.Schema:
    """The schema of a dataset shard (`ids`: the dtype of token ids, from `id_dtype`).

    `masks` has one entry a mask copy: the sorted positions that are predicted, and the ids that stand there in
    the masked sequence. The labels are `input_ids` at those positions. Left-to-right rows have empty lists there.

    `source` names the document of the row's first token, and the sentence of that document in which the row begins. A pairing
    that cuts a sentence too long for a row counts each part of it as a sentence, so that no two rows share a source.

    `boundaries` stands last, only where `info.packed`: the first position of every sequence in the row, 0 first.
    """
    token = pa.from_numpy_dtype(ids)
    mask = pa.struct([pa.field("positions", pa.list_(pa.uint16())), pa.field("input_ids", pa.list_(token))])
    fields = [
        pa.field("input_ids", pa.list_(token), nullable=False),
        pa.field("segment_start", pa.int32(), nullable=False),
        pa.field("pair_label", pa.int8(), nullable=True),
        pa.field("masks", pa.list_(mask), nullable=False),
        pa.field("source", pa.struct([pa.field("document", pa.uint64()), pa.field("offset", pa.int32())]), nullable=False),
    ]
    if info.packed:
        fields.append(pa.field("boundaries", pa.list_(pa.uint16()), nullable=False))
    return pa.schema(fields, metadata=info.to_metadata())
