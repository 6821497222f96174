"""Stage "dataset": from segments to rows, `[CLS] A [SEP] B [SEP]`, in the order in which the dataset spreads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.core import random_keys
from pipeline.core.ragged import I64, Ragged, offsets_of, ranges
from pipeline.core.random_keys import U64
from pipeline.dataset.masking.candidates import UnmaskedRows, row_keys
from pipeline.dataset.pairs.segments import USE_RANK, Segments
from pipeline.dataset.tokenized_documents import TokenizedDocuments
from pipeline.tokenizer.special import SpecialTokens

FLAT = ("rank", "segment_start", "pair_label", "document", "offset")  # the columns with one number a row


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlock:
    """Unmasked rows, as a dataset shard holds them.

    Attributes:
        rank: uint64 [R], ascending; the rows of the whole dataset are ordered by it.
        input_ids: [T], all rows end to end, special tokens included.
        offsets: int64 [R + 1].
        segment_start: int32 [R], where B begins; the row's length if there is none.
        pair_label: int8 [R], NO_LABEL where there is none.
        document: uint64 [R], key of the document of segment A.
        offset: int32 [R], the sentence of that document in which the row begins.
        boundaries: for packed rows, the uint16 positions at which each row's sequences begin, 0 first; else None.
    """

    rank: U64
    input_ids: npt.NDArray[Any]
    offsets: I64
    segment_start: npt.NDArray[np.int32]
    pair_label: npt.NDArray[np.int8]
    document: U64
    offset: npt.NDArray[np.int32]
    boundaries: Ragged | None = None

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def lengths(self) -> I64:
        """Tokens of each row: int64 [R]."""
        return np.diff(self.offsets)

    def keyed(self, seed: int) -> UnmaskedRows:
        """The rows as masking takes them."""
        return UnmaskedRows(
            keys=row_keys(seed, self.document, self.offset),
            input_ids=self.input_ids,
            offsets=self.offsets,
            segment_start=self.segment_start,
        )

    @property
    def _ids(self) -> Ragged:
        return Ragged(self.input_ids, self.offsets)

    def take(self, index: npt.NDArray[Any]) -> RowBlock:
        """The rows that `index` names, in its order."""
        ids = self._ids.take(index)
        return RowBlock(
            **{name: getattr(self, name)[index] for name in FLAT},
            input_ids=ids.values,
            offsets=ids.offsets,
            boundaries=None if self.boundaries is None else self.boundaries.take(index),
        )

    @classmethod
    def concatenate(cls, blocks: Sequence[RowBlock]) -> RowBlock:
        """The rows of one or more blocks of the same kind, end to end."""
        flat = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in FLAT}
        ids = Ragged.concatenate([block._ids for block in blocks])
        boundaries = [block.boundaries for block in blocks if block.boundaries is not None]
        return cls(
            **flat,
            input_ids=ids.values,
            offsets=ids.offsets,
            boundaries=Ragged.concatenate(boundaries) if boundaries else None,
        )


def assemble(documents: TokenizedDocuments, segments: Segments, seed: int, special: SpecialTokens) -> RowBlock:
    """Rows from segments, special tokens added, in ascending order of rank.

    Args:
        documents: what the segments' ranges point into.
        segments: R rows: `[CLS] A [SEP]`, `[CLS] A [SEP] B [SEP]`, or a [CLS] before every piece where they are packed.
        seed: the dataset's.
        special: ids of [CLS] and [SEP].
    """
    document = documents.keys[segments.document]
    rank = random_keys.derive(row_keys(seed, document, segments.offset), USE_RANK)
    order = np.argsort(rank, kind="stable")
    starts = Ragged(segments.starts, segments.pieces).take(order)
    lengths = Ragged(segments.lengths, segments.pieces).take(order).values
    begins = np.zeros(len(lengths), np.bool_)  # pieces that have a [CLS] in front
    begins[starts.offsets[:-1]] = True
    begins |= segments.packed
    # Every piece is three ranges of one array: [CLS] or nothing, text, [SEP].
    size, one = len(documents.tokens), np.ones(len(lengths), np.int64)
    source = np.concatenate([documents.tokens, np.array([special.cls, special.sep], documents.tokens.dtype)])
    range_starts = np.stack([size * one, starts.values, (size + 1) * one], axis=1)
    range_lengths = np.stack([begins.astype(np.int64), lengths, one], axis=1)
    ends = offsets_of(range_lengths.sum(axis=1))  # of pieces, through all rows
    offsets = ends[starts.offsets]
    second = starts.lengths > 1
    return RowBlock(
        rank=rank[order],
        input_ids=source[ranges(range_starts.reshape(-1), range_lengths.reshape(-1))],
        offsets=offsets,
        segment_start=(np.where(second & segments.paired, ends[starts.offsets[:-1] + 1], offsets[1:]) - offsets[:-1]).astype(
            np.int32
        ),
        pair_label=segments.pair_label[order],
        document=document[order],
        offset=segments.offset[order],
        boundaries=Ragged((ends[:-1] - np.repeat(offsets[:-1], starts.lengths)).astype(np.uint16), starts.offsets)
        if segments.packed
        else None,
    )
