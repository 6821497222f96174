"""Stage "dataset", second step: the rows of all parts -> shards, their masks drawn.

`MakeShard` merges its ranges of the ranks out of all parts, draws the masks, and writes a shard. Between the two steps stand
only counts: how many rows of each part fall in which bucket of ranks. A unit's output depends on the corpus and the config
alone, so workers, runners and reruns change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core.arrow import write_arrow
from pipeline.dataset import schema
from pipeline.dataset.masking.candidates import TokenTable
from pipeline.dataset.masking.config import MaskConfig
from pipeline.dataset.masking.draw import Masks, draw_masks
from pipeline.dataset.masking.unigrams import read_unigrams
from pipeline.dataset.merge import count_buckets, merged, open_parts
from pipeline.dataset.pairs.segments import NO_LABEL
from pipeline.dataset.ranks import RankRange, bucket_count, plan_ranges, shard_rows
from pipeline.dataset.row_parts import id_lists, list_offsets
from pipeline.dataset.rows import RowBlock
from pipeline.dataset.summary import ShardCounts
from pipeline.tokenizer.shared import shared_tokenizer

MOST_ROWS = 2048  # of a record batch
BATCH_TOKENS = 2048 * 128 * 10  # length · copies · rows of a record batch: what a writer draws masks for at once, and what
# a reader of compressed shards unpacks at once


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeShard:
    """Ranges of the ranks -> one shard. A unit is {"split": …, "path": shard, "ranges": a `RankRange` as a dict for each length bin}.

    Attributes:
        directory: of the parts.
        parts: how many there are.
        stamp: the fingerprint of what is made.
        info: what every shard says.
        ids: dtype of ids.
        tokenizer: a directory that `Tokenizer.save` wrote.
        masks: how masks are drawn.
        borders: the most tokens of a row in each length bin.
        compression: of the record batches' buffers: zstd, lz4 or None.
        unigrams: the file of the pieces' counts, where masks need them.
    """

    directory: str
    parts: int
    stamp: str
    info: schema.DatasetInfo
    ids: str
    tokenizer: str
    masks: MaskConfig
    borders: tuple[int, ...]
    compression: str | None
    unigrams: str | None = None

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        tokenizer = shared_tokenizer(self.tokenizer, self.info.tokenizer)
        table = TokenTable.of(tokenizer, None if self.unigrams is None else read_unigrams(self.unigrams))
        ranges = [RankRange(**found) for found in unit["ranges"]]
        rows_a_batch = batch_rows(self.info.length, self.info.copies)
        layout = schema.ShardLayout(
            borders=self.borders,
            rows=tuple(found.rows for found in ranges),
            batch_rows=rows_a_batch,
            compression=self.compression,
        )
        plain = schema.dataset_schema(self.info, np.dtype(self.ids))
        arrow_schema = plain.with_metadata({**plain.metadata, **layout.to_metadata()})
        pa.default_memory_pool().release_unused()  # of making parts, where this process did
        parts = open_parts(self.directory, unit["split"], self.parts, self.stamp)
        counts = ShardCounts.empty(self.info.length)

        def batches() -> Iterator[pa.RecordBatch]:
            for wanted, *bin_range in zip(ranges, (0, *self.borders), self.borders, strict=False):
                for block in merged(parts, wanted, rows_a_batch, (bin_range[0], bin_range[1])):
                    masks = draw_masks(block.keyed(self.info.seed), self.masks, table, range(self.info.copies))
                    counts.add(block, masks)
                    yield to_batch(block, masks, self.info.copies, arrow_schema)

        write_arrow(unit["path"], arrow_schema, batches(), self.compression)
        return counts.as_json()


def batch_rows(length: int, copies: int) -> int:
    """Rows of a record batch: 2,048 at 128 tokens and ten copies, a smaller power of two for larger rows."""
    fits = max(1, BATCH_TOKENS // (length * copies))
    return int(min(MOST_ROWS, 1 << (fits.bit_length() - 1)))


def plan(make: MakeShard, split: str, rows: int, shards: int) -> list[list[RankRange]]:
    """For each shard of a split its range of ranks in every length bin: equal to within one row, in all and in each bin.

    Args:
        make: what will write the shards.
        split: train or heldout.
        rows: in all parts.
        shards: how many.
    """
    buckets = bucket_count(rows, make.info.length, make.parts)
    counts = count_buckets(open_parts(make.directory, split, make.parts, make.stamp), make.borders, buckets)
    sizes = shard_rows(counts.sum(axis=1).tolist(), shards)
    bins = [plan_ranges(counts[number], sizes[number]) for number in range(len(make.borders))]
    return [list(ranges) for ranges in zip(*bins, strict=True)]


def to_batch(block: RowBlock, masks: Masks, copies: int, arrow_schema: pa.Schema) -> pa.RecordBatch:
    """Rows with their masks as a record batch of the dataset's schema, without a copy of the ids."""
    mask_list = arrow_schema.field("masks").type
    mask_type, source_type = mask_list.value_type, arrow_schema.field("source").type
    mask_offsets = list_offsets(masks.offsets)
    per_copy = pa.StructArray.from_arrays(
        [
            pa.ListArray.from_arrays(mask_offsets, pa.array(masks.positions), type=mask_type.field("positions").type),
            pa.ListArray.from_arrays(mask_offsets, pa.array(masks.input_ids), type=mask_type.field("input_ids").type),
        ],
        fields=list(mask_type),
    )
    row_masks = np.arange(len(block) + 1, dtype=np.int32) * copies
    source = pa.StructArray.from_arrays([pa.array(block.document), pa.array(block.offset)], fields=list(source_type))
    columns = [
        id_lists(block, arrow_schema.field("input_ids").type),
        pa.array(block.segment_start),
        pa.array(block.pair_label, mask=block.pair_label == NO_LABEL),
        pa.ListArray.from_arrays(pa.array(row_masks), per_copy, type=mask_list),
        source,
    ]
    if block.boundaries is not None:
        lists, begins = arrow_schema.field("boundaries").type, list_offsets(block.boundaries.offsets)
        columns.append(pa.ListArray.from_arrays(begins, pa.array(block.boundaries.values), type=lists))
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema)
