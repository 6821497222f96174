"""Second step of the stage: merge rows into shards, and draw their masks.

Between the two steps only counts are exchanged: how many rows of each intermediate file are in
which bucket of shuffle keys. A unit's output depends only on the corpus and the config, so workers,
runners and reruns do not change it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cloze.core.arrow import write_arrow
from cloze.pipeline.dataset import schema
from cloze.pipeline.dataset.masking.candidates import MaskConfig, TokenProperties, read_unigrams
from cloze.pipeline.dataset.masking.draw import Masks, sample_masks
from cloze.pipeline.dataset.merge import (
    ShuffleRange,
    bucket_count,
    count_buckets,
    merge_range,
    open_intermediate_files,
    plan_ranges,
    shard_rows,
)
from cloze.pipeline.dataset.pairings.segments import NO_LABEL
from cloze.pipeline.dataset.rows import RowBlock, id_lists, list_offsets
from cloze.pipeline.dataset.summary import ShardCounts
from cloze.pipeline.tokenizer.tokenizer import shared_tokenizer

MOST_ROWS = 2048  # per record batch
# length · copies · rows of a record batch: the unit of mask drawing and of decompression
BATCH_TOKENS = 2048 * 128 * 10


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDatasetShard:
    """Key ranges -> one shard.

    A unit is {"split": …, "path": shard, "ranges": one `ShuffleRange` as a dict per length bin}.

    Attributes:
        directory: directory of the intermediate files.
        parts: number of intermediate files.
        stamp: fingerprint of the artifact.
        info: metadata of every shard.
        ids: dtype of token ids.
        tokenizer: directory that `Tokenizer.save` wrote.
        masks: config of the masks.
        borders: maximum row length of each length bin.
        compression: compression of the record batches' buffers: zstd, lz4 or None.
        unigrams: file of token counts, if the masks need them.
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
        table = TokenProperties.of(
            tokenizer, None if self.unigrams is None else read_unigrams(self.unigrams)
        )
        ranges = [ShuffleRange(**shuffle_range) for shuffle_range in unit["ranges"]]
        rows_a_batch = batch_rows(self.info.length, self.info.copies)
        layout = schema.ShardLayout(
            bin_boundaries=self.borders,
            rows=tuple(shuffle_range.rows for shuffle_range in ranges),
            batch_rows=rows_a_batch,
            compression=self.compression,
        )
        base_schema = schema.dataset_schema(self.info, np.dtype(self.ids))
        arrow_schema = base_schema.with_metadata({**base_schema.metadata, **layout.to_metadata()})
        pa.default_memory_pool().release_unused()  # of the first step, if run here
        row_files = open_intermediate_files(self.directory, unit["split"], self.parts, self.stamp)
        counts = ShardCounts.empty(self.info.length)

        def batches() -> Iterator[pa.RecordBatch]:
            for key_range, *bin_range in zip(
                ranges, (0, *self.borders), self.borders, strict=False
            ):
                for block in merge_range(
                    row_files, key_range, rows_a_batch, (bin_range[0], bin_range[1])
                ):
                    masks = sample_masks(
                        block.with_keys(self.info.seed), self.masks, table, range(self.info.copies)
                    )
                    counts.add(block, masks)
                    yield to_batch(block, masks, self.info.copies, arrow_schema)

        write_arrow(unit["path"], arrow_schema, batches(), self.compression)
        return counts.as_json()


def batch_rows(length: int, copies: int) -> int:
    """Return the rows per record batch: 2,048 at 128 tokens and ten copies, fewer for larger rows.

    A power of two.
    """
    rows = max(1, BATCH_TOKENS // (length * copies))
    return int(min(MOST_ROWS, 1 << (rows.bit_length() - 1)))


def plan(make: WriteDatasetShard, split: str, rows: int, shards: int) -> list[list[ShuffleRange]]:
    """Return the key ranges of each shard per length bin; sizes are equal to within one row.

    Args:
        make: unit function that will write the shards.
        split: train or heldout.
        rows: number of rows in all intermediate files.
        shards: number of shards.
    """
    buckets = bucket_count(rows, make.info.length, make.parts)
    counts = count_buckets(
        open_intermediate_files(make.directory, split, make.parts, make.stamp),
        make.borders,
        buckets,
    )
    sizes = shard_rows(counts.sum(axis=1).tolist(), shards)
    bins = [plan_ranges(counts[number], sizes[number]) for number in range(len(make.borders))]
    return [list(ranges) for ranges in zip(*bins, strict=True)]


def to_batch(block: RowBlock, masks: Masks, copies: int, arrow_schema: pa.Schema) -> pa.RecordBatch:
    """Convert rows and masks to a record batch of the dataset's schema, without copying the ids."""
    mask_list = arrow_schema.field("masks").type
    mask_type, source_type = mask_list.value_type, arrow_schema.field("source").type
    mask_offsets = list_offsets(masks.offsets)
    per_copy = pa.StructArray.from_arrays(
        [
            pa.ListArray.from_arrays(
                mask_offsets, pa.array(masks.positions), type=mask_type.field("positions").type
            ),
            pa.ListArray.from_arrays(
                mask_offsets, pa.array(masks.input_ids), type=mask_type.field("input_ids").type
            ),
        ],
        fields=list(mask_type),
    )
    row_masks = np.arange(len(block) + 1, dtype=np.int32) * copies
    source = pa.StructArray.from_arrays(
        [pa.array(block.document), pa.array(block.offset)], fields=list(source_type)
    )
    columns = [
        id_lists(block, arrow_schema.field("input_ids").type),
        pa.array(block.segment_start),
        pa.array(block.pair_label, mask=block.pair_label == NO_LABEL),
        pa.ListArray.from_arrays(pa.array(row_masks), per_copy, type=mask_list),
        source,
    ]
    if block.boundaries is not None:
        list_type, boundary_offsets = (
            arrow_schema.field("boundaries").type,
            list_offsets(block.boundaries.offsets),
        )
        columns.append(
            pa.ListArray.from_arrays(
                boundary_offsets, pa.array(block.boundaries.values), type=list_type
            )
        )
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema)
