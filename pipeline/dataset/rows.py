"""Rows from segments, `[CLS] A [SEP] B [SEP]`, in shuffled order, and as Arrow batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.core import random_keys
from cloze.core.errors import UsageError
from cloze.core.ragged import I64, Ragged, offsets_of, ranges
from cloze.core.random_keys import U64
from cloze.pipeline.dataset.masking.candidates import DRAWING_BIT, UnmaskedRows, row_keys
from cloze.pipeline.dataset.pairings.segments import USE_RANK, Segments, TokenizedDocuments
from cloze.pipeline.dataset.schema import id_dtype
from cloze.pipeline.tokenizer.special import SpecialTokens

# columns with one number per row
FLAT = ("rank", "segment_start", "pair_label", "document", "offset")
# Columns with a list per row that only some datasets have. Boundaries: start positions of the
# sequences of a packed row, 0 first. Marks: those of its tokens, for a masking rule that has marks.
BOUNDARIES, MARKS = "boundaries", "marks"
LISTS = {BOUNDARIES: pa.uint16(), MARKS: pa.uint8()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlock:
    """R unmasked rows, as a dataset shard stores them."""

    rank: U64  # uint64 [R], ascending shuffle keys; they order the rows of the whole dataset
    ids: Ragged  # token ids of each row, special tokens included
    segment_start: npt.NDArray[np.int32]  # int32 [R], start of B; the row's length if there is no B
    pair_label: npt.NDArray[np.int8]  # int8 [R], NO_LABEL without a label
    document: U64  # uint64 [R], key of the document of segment A
    offset: I64  # int64 [R], place of the row in that document, see `row_keys`
    columns: Mapping[str, Ragged] = field(default_factory=dict)  # lists of some of `LISTS`, by name

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def lengths(self) -> I64:
        """Tokens of each row: int64 [R]."""
        return self.ids.lengths

    def with_keys(self, seed: int) -> UnmaskedRows:
        """Return the rows as input of masking."""
        return UnmaskedRows(
            keys=row_keys(seed, self.document, self.offset),
            input_ids=self.ids.values,
            offsets=self.ids.offsets,
            segment_start=self.segment_start,
            marks=self.columns[MARKS].values if MARKS in self.columns else None,
        )

    def take(self, index: npt.NDArray[Any]) -> RowBlock:
        """Return the rows at `index`, in the order of `index`."""
        return RowBlock(
            **{name: getattr(self, name)[index] for name in FLAT},
            ids=self.ids.take(index),
            columns={name: column.take(index) for name, column in self.columns.items()},
        )

    @classmethod
    def concatenate(cls, blocks: Sequence[RowBlock]) -> RowBlock:
        """Concatenate the rows of one or more blocks of the same kind."""
        return cls(
            **{name: np.concatenate([getattr(block, name) for block in blocks]) for name in FLAT},
            ids=Ragged.concatenate([block.ids for block in blocks]),
            columns={
                name: Ragged.concatenate([block.columns[name] for block in blocks])
                for name in blocks[0].columns
            },
        )

    def to_arrow(self) -> pa.RecordBatch:
        """Return the rows as an intermediate file stores them; `from_arrow` reads them."""
        columns = {"rank": pa.array(self.rank), "input_ids": list_array(self.ids)}
        columns |= {name: pa.array(getattr(self, name)) for name in FLAT}
        columns |= {name: list_array(column) for name, column in self.columns.items()}
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    @classmethod
    def from_arrow(cls, batch: pa.RecordBatch) -> RowBlock:
        """Return the rows of an intermediate file, still memory-mapped."""
        return cls(
            **{name: batch[name].to_numpy() for name in FLAT},
            ids=_ragged(batch["input_ids"]),
            columns={name: _ragged(batch[name]) for name in LISTS if name in batch.schema.names},
        )


def list_array(ragged: Ragged, list_type: pa.DataType | None = None) -> pa.ListArray:
    """Return an Arrow list for each row, without copying the values.

    Raises:
        UsageError: there are more values than Arrow's 32-bit offsets reach.
    """
    total = ragged.offsets[-1]
    if total > np.iinfo(np.int32).max:
        raise UsageError(
            f"a record batch of {total:,} tokens is more than Arrow's lists hold; use smaller "
            f"corpus shards, or fewer copies"
        )
    offsets = pa.array(ragged.offsets.astype(np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array(ragged.values), type=list_type)


def _ragged(lists: pa.ListArray) -> Ragged:
    offsets = lists.offsets.to_numpy().astype(np.int64)
    return Ragged(lists.values.to_numpy()[offsets[0] : offsets[-1]], offsets - offsets[0])


def assemble(
    documents: TokenizedDocuments,
    segments: Segments,
    seed: int,
    special: SpecialTokens,
    drawings: int = 1,
) -> RowBlock:
    """Build rows from segments, with special tokens, in ascending order of the shuffle key.

    The keys of each drawing are an equal range of all keys, so a dataset has one after the other.

    Args:
        documents: documents that the segments' ranges point into.
        segments: R rows: `[CLS] A [SEP]`, `[CLS] A [SEP] B [SEP]`, or, if packed, a [CLS] before
            every range.
        special: ids of [CLS] and [SEP].
    """
    document = documents.keys[segments.document]
    rank = random_keys.fold_in(row_keys(seed, document, segments.offset), USE_RANK)
    if drawings > 1:
        drawing = (segments.offset >> DRAWING_BIT).astype(np.uint64)
        # Divided first: each drawing has its own part of the 64-bit range, and nothing overflows.
        rank = rank // np.uint64(drawings) + drawing * np.uint64((1 << 64) // drawings)
    # Sorted here, so that a unit writes a sorted run and a shard merges instead of shuffling.
    order = np.argsort(rank, kind="stable")
    starts = Ragged(segments.starts, segments.range_offsets).take(order)
    lengths = Ragged(segments.lengths, segments.range_offsets).take(order).values
    follows_cls = np.zeros(len(lengths), np.bool_)  # ranges that follow a [CLS]
    follows_cls[starts.offsets[:-1]] = True
    follows_cls |= segments.packed
    # Every range becomes three ranges of one array: [CLS] or nothing, text, [SEP].
    size, ones = len(documents.tokens), np.ones(len(lengths), np.int64)
    source = np.concatenate(
        [documents.tokens, np.array([special.cls, special.sep], documents.tokens.dtype)]
    )
    range_starts = np.stack([size * ones, starts.values, (size + 1) * ones], axis=1)
    range_lengths = np.stack([follows_cls.astype(np.int64), lengths, ones], axis=1)
    ends = offsets_of(range_lengths.sum(axis=1))  # ends of the ranges, over all rows
    offsets = ends[starts.offsets]
    has_second = starts.lengths > 1
    tokens = ranges(range_starts.reshape(-1), range_lengths.reshape(-1))
    columns = {}
    if segments.packed:
        boundaries = ends[:-1] - np.repeat(offsets[:-1], starts.lengths)
        columns[BOUNDARIES] = Ragged(boundaries.astype(np.uint16), starts.offsets)
    if documents.marks is not None:  # special tokens have none
        marks = np.append(documents.marks, np.zeros(2, np.uint8))
        columns[MARKS] = Ragged(marks[tokens], offsets)
    return RowBlock(
        rank=rank[order],
        ids=Ragged(source[tokens], offsets),
        segment_start=(
            np.where(has_second & segments.paired, ends[starts.offsets[:-1] + 1], offsets[1:])
            - offsets[:-1]
        ).astype(np.int32),
        pair_label=segments.pair_label[order],
        document=document[order],
        offset=segments.offset[order],
        columns=columns,
    )


def part_schema(vocab_size: int, columns: Collection[str]) -> pa.Schema:
    """Return the schema of `RowBlock.to_arrow`, with these of `LISTS`."""
    ids = pa.from_numpy_dtype(id_dtype(vocab_size))
    fields = [("rank", pa.uint64()), ("input_ids", pa.list_(ids)), ("segment_start", pa.int32())]
    fields += [("pair_label", pa.int8()), ("document", pa.uint64()), ("offset", pa.int64())]
    fields += [(name, pa.list_(kind)) for name, kind in LISTS.items() if name in columns]
    return pa.schema(fields)
