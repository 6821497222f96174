"""Stage "dataset": from segments to rows, `[CLS] A [SEP] B [SEP]`, in the order in which the dataset spreads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline import keys
from pipeline.examples.documents import Documents
from pipeline.examples.masking.draw import Rows, row_keys
from pipeline.examples.pairs.segments import NO_LABEL, USE_RANK, Segments
from pipeline.examples.ragged import I64, offsets_of, ranges
from pipeline.keys import U64
from pipeline.schema import SpecialTokens


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
    """

    rank: U64
    input_ids: npt.NDArray[Any]
    offsets: I64
    segment_start: npt.NDArray[np.int32]
    pair_label: npt.NDArray[np.int8]
    document: U64
    offset: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def lengths(self) -> I64:
        """Tokens of each row: int64 [R]."""
        return np.diff(self.offsets)

    def keyed(self, seed: int) -> Rows:
        """The rows as masking takes them."""
        return Rows(
            keys=row_keys(seed, self.document, self.offset),
            input_ids=self.input_ids,
            offsets=self.offsets,
            segment_start=self.segment_start,
        )

    def slice(self, first: int, end: int) -> RowBlock:
        """Rows first to end, without a copy."""
        offsets = self.offsets[first : end + 1]
        return RowBlock(
            rank=self.rank[first:end],
            input_ids=self.input_ids[offsets[0] : offsets[-1]],
            offsets=offsets - offsets[0],
            segment_start=self.segment_start[first:end],
            pair_label=self.pair_label[first:end],
            document=self.document[first:end],
            offset=self.offset[first:end],
        )

    @classmethod
    def concatenate(cls, blocks: Sequence[RowBlock]) -> RowBlock:
        """The rows of one or more blocks, end to end."""
        return cls(
            rank=np.concatenate([block.rank for block in blocks]),
            input_ids=np.concatenate([block.input_ids for block in blocks]),
            offsets=offsets_of(np.concatenate([block.lengths for block in blocks])),
            segment_start=np.concatenate([block.segment_start for block in blocks]),
            pair_label=np.concatenate([block.pair_label for block in blocks]),
            document=np.concatenate([block.document for block in blocks]),
            offset=np.concatenate([block.offset for block in blocks]),
        )

    def sorted(self) -> RowBlock:
        """The rows in ascending order of rank; rows of equal rank stay in the order that they have."""
        order = np.argsort(self.rank, kind="stable")
        lengths = self.lengths[order]
        return RowBlock(
            rank=self.rank[order],
            input_ids=self.input_ids[ranges(self.offsets[:-1][order], lengths)],
            offsets=offsets_of(lengths),
            segment_start=self.segment_start[order],
            pair_label=self.pair_label[order],
            document=self.document[order],
            offset=self.offset[order],
        )


def assemble(documents: Documents, segments: Segments, seed: int, special: SpecialTokens) -> RowBlock:
    """Rows from segments, special tokens added, in ascending order of rank.

    Args:
        documents: what the segments' ranges point into.
        segments: R rows; one with an empty B becomes `[CLS] A [SEP]`.
        seed: the dataset's.
        special: ids of [CLS] and [SEP].
    """
    document = documents.keys[segments.document]
    rank = keys.derive(row_keys(seed, document, segments.offset), USE_RANK)
    order = np.argsort(rank, kind="stable")
    starts, lengths = segments.starts[order], segments.lengths[order]
    # Every row is five ranges of one array: [CLS], A, [SEP], B, and [SEP] if there is a B.
    size = len(documents.tokens)
    source = np.concatenate([documents.tokens, np.array([special.cls, special.sep], documents.tokens.dtype)])
    one, paired = np.ones(len(order), np.int64), lengths[:, 1] > 0
    range_starts = np.stack([size * one, starts[:, 0], (size + 1) * one, starts[:, 1], (size + 1) * one], axis=1)
    range_lengths = np.stack([one, lengths[:, 0], one, lengths[:, 1], paired.astype(np.int64)], axis=1)
    return RowBlock(
        rank=rank[order],
        input_ids=source[ranges(range_starts.reshape(-1), range_lengths.reshape(-1))],
        offsets=offsets_of(range_lengths.sum(axis=1)),
        segment_start=(lengths[:, 0] + 2).astype(np.int32),
        pair_label=np.where(paired, segments.pair_label[order], NO_LABEL).astype(np.int8),
        document=document[order],
        offset=segments.offset[order],
    )
