"""The Arrow schema of dataset shards, their metadata, and the layout of their record batches.

Shards are plain Arrow IPC files that pyarrow, `datasets`, polars and duckdb read directly.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cloze.core.errors import DataError
from cloze.core.ragged import I64
from cloze.pipeline.tokenizer.special import SpecialTokens

VERSION = 1
LAYOUT_KEY = b"cloze.layout"
NO_PAIR = -100  # pair label of a row without a label in a batch; torch's usual ignore index


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo:
    """The properties of a dataset's rows, stored as JSON in every shard's schema metadata."""

    recipe: str  # a name in `cloze.pipeline.dataset.recipes.RECIPES`
    length: int  # maximum tokens per row
    copies: int  # mask copies per row
    vocab_size: int  # V
    special: SpecialTokens  # ids of the special tokens
    pair_task: str | None  # meaning of the pair labels: nsp, sop, or None without labels
    seed: int  # seed of all random numbers; together with a row's `source` it gives the row's key
    tokenizer: str  # fingerprint of the tokenizer
    # a row has several sequences that must not attend to each other; the column `boundaries` has
    # their starts
    packed: bool = False
    # how the stored masks were drawn (`MaskConfig.as_dict`), so that dynamic masks can be drawn in
    # the same way; None if unknown
    masks: dict[str, Any] | None = None
    drawings: int = 1  # number of times that the training documents were cut into rows anew
    version: int = VERSION

    def to_metadata(self) -> dict[bytes, bytes]:
        return {b"cloze.dataset": json.dumps(asdict(self), sort_keys=True).encode()}

    @classmethod
    def from_schema(cls, schema: pa.Schema, name: str) -> DatasetInfo:
        """Read the metadata; raise `DataError` if `name` is no dataset shard."""
        content = (schema.metadata or {}).get(b"cloze.dataset")
        if content is None:
            raise DataError(
                f"{name} is no Cloze dataset shard (its schema lacks the key cloze.dataset); make "
                f"one with `cloze dataset`"
            )
        values = json.loads(content)
        if values.get("version") != VERSION:
            raise DataError(
                f"{name} has dataset version {values.get('version')}, this program reads {VERSION};"
                f" make it again"
            )
        values["special"] = SpecialTokens(**values["special"])
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLayout:
    """The layout of a shard's rows in record batches, so that a reader can find any row directly.

    Rows are in length bins, the shortest first, and in shuffle order within a bin. A record batch
    has rows of one bin only, and a fixed number of them except for the bin's last batch. Without
    bins there is one. Within a bin, one drawing follows the other. Stored as JSON under
    `cloze.layout` in the schema's metadata, which other programs ignore.
    """

    bin_boundaries: tuple[int, ...]  # maximum row length of each bin
    rows: tuple[int, ...]  # rows in each bin
    batch_rows: int  # rows per record batch, except for the last of each bin
    compression: str | None = None  # compression of the buffers: zstd, lz4 or None
    # rows of each drawing in each bin; empty if there is one drawing
    drawings: tuple[tuple[int, ...], ...] = ()

    def to_metadata(self) -> dict[bytes, bytes]:
        values = {name: value for name, value in asdict(self).items() if value != ()}
        values["borders"] = values.pop("bin_boundaries")  # the stored name
        return {LAYOUT_KEY: json.dumps(values, sort_keys=True).encode()}

    @classmethod
    def from_schema(cls, schema: pa.Schema, name: str) -> ShardLayout | None:
        """Read the layout; return None if there is none, raise `DataError` if it is damaged."""
        content = (schema.metadata or {}).get(LAYOUT_KEY)
        if content is None:
            return None
        try:
            values = json.loads(content)
            layout = cls(
                bin_boundaries=tuple(map(int, values["borders"])),
                rows=tuple(map(int, values["rows"])),
                batch_rows=int(values["batch_rows"]),
                compression=values.get("compression"),
                drawings=tuple(tuple(map(int, rows)) for rows in values.get("drawings", ())),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"{name} is damaged (its layout cannot be read); make the dataset again"
            ) from error
        if (
            len(layout.rows) != len(layout.bin_boundaries)
            or layout.batch_rows < 1
            or min(layout.rows, default=0) < 0
            or tuple(map(sum, layout.cells)) != layout.rows
        ):
            raise DataError(
                f"{name} is damaged (its layout contradicts itself); make the dataset again"
            )
        return layout

    @property
    def cells(self) -> tuple[tuple[int, ...], ...]:
        """Rows of each drawing in each bin."""
        return self.drawings or tuple((rows,) for rows in self.rows)

    def batches(self) -> I64:
        """Return the rows of each record batch: int64 [batches]."""
        counts = -(-np.asarray(self.rows, np.int64) // self.batch_rows)
        sizes = np.full(counts.sum(), self.batch_rows, np.int64)
        last = np.cumsum(counts)[counts > 0] - 1
        sizes[last] = (np.asarray(self.rows, np.int64)[counts > 0] - 1) % self.batch_rows + 1
        return sizes


def id_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the dtype of the ids of a vocabulary: uint16 if it is wide enough, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def dataset_schema(info: DatasetInfo, ids: np.dtype[Any]) -> pa.Schema:
    """Return the schema of a dataset shard (`ids`: dtype of token ids, from `id_dtype`).

    `masks` has one entry per mask copy: the sorted predicted positions, and the ids at these
    positions in the masked sequence. Labels are the `input_ids` there. Left-to-right rows have
    empty lists.

    `source` names the document of the row's first token, and the sentence in which the row begins.
    If a pairing splits an overlong sentence, each part counts as a sentence, so that no two rows
    share a source. With several drawings it has a field `drawing`, too.

    `boundaries` is the last column, only if `info.packed`: the first position of every sequence in
    the row, 0 first.
    """
    token = pa.from_numpy_dtype(ids)
    mask = pa.struct(
        [pa.field("positions", pa.list_(pa.uint16())), pa.field("input_ids", pa.list_(token))]
    )
    source = [pa.field("document", pa.uint64()), pa.field("offset", pa.int32())]
    source += [pa.field("drawing", pa.int32())] if info.drawings > 1 else []
    fields = [
        pa.field("input_ids", pa.list_(token), nullable=False),
        pa.field("segment_start", pa.int32(), nullable=False),
        pa.field("pair_label", pa.int8(), nullable=True),
        pa.field("masks", pa.list_(mask), nullable=False),
        pa.field("source", pa.struct(source), nullable=False),
    ]
    if info.packed:
        fields.append(pa.field("boundaries", pa.list_(pa.uint16()), nullable=False))
    return pa.schema(fields, metadata=info.to_metadata())
