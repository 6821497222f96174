"""Stage "dataset", second step: the rows of all parts -> shards, their masks drawn.

`MakeShard` merges its slices of the ranks out of all parts, draws the masks, and writes a shard. Between the two steps stand
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
from pipeline.dataset.figures import ShardFigures
from pipeline.dataset.masking.draw import MaskConfig, Masks, TokenTable, draw_masks
from pipeline.dataset.masking.unigrams import read_unigrams
from pipeline.dataset.merge import count_buckets, merged, open_parts
from pipeline.dataset.pairs.segments import NO_LABEL
from pipeline.dataset.ranks import Slice, bucket_count, plan_slices, shard_rows
from pipeline.dataset.row_parts import id_lists, list_offsets
from pipeline.dataset.rows import RowBlock
from pipeline.dataset.shard_layout import Layout, batch_rows
from pipeline.tokenizer.shared import shared_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeShard:
    """Slices of the ranks -> one shard. A unit is {"split": …, "path": shard, "slices": a `Slice` as a dict for each length bin}.

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
        slices = [Slice(**part) for part in unit["slices"]]
        rows_a_batch = batch_rows(self.info.length, self.info.copies)
        layout = Layout(
            borders=self.borders,
            rows=tuple(part.rows for part in slices),
            batch_rows=rows_a_batch,
            compression=self.compression,
        )
        plain = schema.dataset_schema(self.info, np.dtype(self.ids))
        arrow_schema = plain.with_metadata({**plain.metadata, **layout.to_metadata()})
        pa.default_memory_pool().release_unused()  # of making parts, where this process did
        parts = open_parts(self.directory, unit["split"], self.parts, self.stamp)
        figures = ShardFigures.empty(self.info.length)

        def batches() -> Iterator[pa.RecordBatch]:
            for part, *bin_range in zip(slices, (0, *self.borders), self.borders, strict=False):
                for block in merged(parts, part, rows_a_batch, (bin_range[0], bin_range[1])):
                    masks = draw_masks(block.keyed(self.info.seed), self.masks, table, range(self.info.copies))
                    figures.add(block, masks)
                    yield to_batch(block, masks, self.info.copies, arrow_schema)

        write_arrow(unit["path"], arrow_schema, batches(), self.compression)
        return figures.as_json()


def plan(make: MakeShard, split: str, rows: int, shards: int) -> list[list[Slice]]:
    """For each shard of a split its slice of every length bin: equal to within one row, in all and in each bin.

    Args:
        make: what will write the shards.
        split: train or heldout.
        rows: in all parts.
        shards: how many.
    """
    buckets = bucket_count(rows, make.info.length, make.parts)
    counts = count_buckets(open_parts(make.directory, split, make.parts, make.stamp), make.borders, buckets)
    sizes = shard_rows(counts.sum(axis=1).tolist(), shards)
    bins = [plan_slices(counts[number], sizes[number]) for number in range(len(make.borders))]
    return [list(slices) for slices in zip(*bins, strict=True)]


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
