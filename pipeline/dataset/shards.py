"""Second step of the stage: merge rows into shards, and draw their masks.

The driver plans the shards from the number of rows in each bucket of shuffle keys. A unit's output
depends only on the corpus and the config, so workers, runners and reruns do not change it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cloze.core.arrow import write_arrow
from cloze.core.ragged import I64, Ragged
from cloze.pipeline.dataset import schema
from cloze.pipeline.dataset.config import DatasetConfig
from cloze.pipeline.dataset.masking import candidates
from cloze.pipeline.dataset.masking.candidates import DRAWING_BIT, SENTENCES, TokenProperties
from cloze.pipeline.dataset.masking.draw import Masks, sample_masks
from cloze.pipeline.dataset.masking.registry import RULES
from cloze.pipeline.dataset.pairings.segments import NO_LABEL
from cloze.pipeline.dataset.ranges import (
    ShuffleRange,
    bin_borders,
    merge_range,
    plan_ranges,
    shard_rows,
)
from cloze.pipeline.dataset.rows import BOUNDARIES, MARKS, RowBlock, list_array, part_schema
from cloze.pipeline.runners.exchange import Exchange, RunRanges
from cloze.pipeline.tokenizer.loading import shared_tokenizer

HISTOGRAM_BINS = 16
MOST_ROWS = 2048  # per record batch
# length · copies · rows of a record batch: the unit of mask drawing and of decompression
BATCH_TOKENS = 2048 * 128 * 10


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDatasetShard:
    """Key ranges -> one shard.

    A unit is that of `plan_units` and "path", of the shard.
    """

    runs: Exchange  # exchange of the rows
    info: schema.DatasetInfo  # metadata of every shard
    tokenizer: str  # directory that `Tokenizer.save` wrote
    config: DatasetConfig  # masks, length bins and compression
    unigrams: str | None = None  # file of token counts, if the masks need them

    @property
    def borders(self) -> tuple[int, ...]:
        """Maximum row length of each length bin."""
        return bin_borders(self.config.length, self.config.length_bins)

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        tokenizer = shared_tokenizer(self.tokenizer, self.info.tokenizer)
        table = TokenProperties.of(
            tokenizer, None if self.unigrams is None else candidates.read_unigrams(self.unigrams)
        )
        ranges = [ShuffleRange(**shuffle_range) for shuffle_range in unit["ranges"]]
        info, mask_config = self.info, self.config.mask_config()
        compression = None if self.config.compression == "none" else self.config.compression
        layout = schema.ShardLayout(
            bin_boundaries=self.borders,
            rows=tuple(shuffle_range.rows for shuffle_range in ranges),
            batch_rows=batch_rows(info.length, info.copies),
            compression=compression,
            drawings=tuple(map(tuple, unit["drawings"])) if info.drawings > 1 else (),
        )
        base_schema = schema.dataset_schema(info, schema.id_dtype(info.vocab_size))
        arrow_schema = base_schema.with_metadata({**base_schema.metadata, **layout.to_metadata()})
        pa.default_memory_pool().release_unused()  # of the first step, if run here
        lists = {BOUNDARIES: info.packed, MARKS: RULES[mask_config.rule].marks is not None}
        rows_schema = part_schema(info.vocab_size, [name for name in lists if lists[name]])
        counts = [NO_ROWS]

        def batches(runs: RunRanges) -> Iterator[pa.RecordBatch]:
            for number, key_range in enumerate(ranges):
                size, bins = layout.batch_rows, len(self.borders)
                for block in merge_range(runs, key_range, number, bins, size):
                    # By the rows' own keys: masks are the same in any shard, batch or order.
                    rows = block.with_keys(info.seed)
                    masks = sample_masks(rows, mask_config, table, range(info.copies))
                    counts.append(count_rows(block, masks, info.length))
                    yield to_batch(block, masks, info.copies, arrow_schema)

        needed = [each for each in ranges if each.rows] or ranges[:1]
        first = min(each.first for each in needed) * len(self.borders)
        end = max(each.end for each in needed) * len(self.borders)
        with self.runs.read(rows_schema, first, end) as runs:
            write_arrow(unit["path"], arrow_schema, batches(runs), compression)
        return sum_counts(counts)


# rows; tokens of all rows, special tokens included; predictions in all copies; rows without any;
# rows with pair label 0, with label 1, and without a label; rows by length
Counts = Mapping[str, Any]
NO_ROWS: Counts = {
    "rows": 0,
    "row_tokens": 0,
    "masked": 0,
    "unmasked_rows": 0,
    "labels": [0, 0, 0],
    "histogram": [0] * HISTOGRAM_BINS,
}


def count_rows(block: RowBlock, masks: Masks, length: int) -> Counts:
    """Return the counts of some rows; `length`: maximum tokens per row."""
    bins = (block.lengths - 1) * HISTOGRAM_BINS // length
    copies = (len(masks.offsets) - 1) // len(block)
    return {
        "rows": len(block),
        "row_tokens": len(block.ids.values),
        "masked": len(masks.positions),
        "unmasked_rows": (np.diff(masks.offsets[::copies]) == 0).sum(),
        "labels": [(block.pair_label == label).sum() for label in (0, 1, NO_LABEL)],
        "histogram": np.bincount(bins, minlength=HISTOGRAM_BINS),
    }


def sum_counts(counts: Sequence[Counts]) -> dict[str, Any]:
    """Return the sums of the counts by name, as JSON types."""
    return {name: np.sum([each[name] for each in counts], axis=0).tolist() for name in NO_ROWS}


def batch_rows(length: int, copies: int) -> int:
    """Return the rows per record batch: 2,048 at 128 tokens and ten copies, fewer for larger rows.

    A power of two.
    """
    rows = max(1, BATCH_TOKENS // (length * copies))
    return int(min(MOST_ROWS, 1 << (rows.bit_length() - 1)))


def plan_units(counts: I64, drawn: I64, shards: int, first: int = 0) -> list[dict[str, Any]]:
    """Return the units of a split's shards, which are equal to within one row.

    A unit has "ranges", a `ShuffleRange` as a dict per length bin; and "drawings", the rows of each
    drawing in each bin.

    Args:
        counts: int64 [bins, buckets], rows.
        drawn: int64 [bins, drawings], rows.
        first: number of the first bucket.
    """
    sizes = shard_rows(counts.sum(axis=1).tolist(), shards)
    bins = [plan_ranges(counts[number], sizes[number], first) for number in range(len(counts))]
    # A bin's rows are in order of their drawings; the shards take them in turn: [bins, 1, D], and
    # [bins, shards + 1, 1].
    drawn = drawn[:, None]
    bounds = np.pad(np.cumsum(sizes, axis=1), ((0, 0), (1, 0)))[..., None]
    cells = np.diff(np.clip(bounds - (np.cumsum(drawn, axis=2) - drawn), 0, drawn), axis=1)
    return [
        {"ranges": list(map(asdict, ranges)), "drawings": cells[:, number].tolist()}
        for number, ranges in enumerate(zip(*bins, strict=True))
    ]


def to_batch(block: RowBlock, masks: Masks, copies: int, arrow_schema: pa.Schema) -> pa.RecordBatch:
    """Convert rows and masks to a record batch of the dataset's schema, without copying the ids."""
    mask_list = arrow_schema.field("masks").type
    mask_type, source_type = mask_list.value_type, arrow_schema.field("source").type
    values = {"positions": masks.positions, "input_ids": masks.input_ids}
    lists = [list_array(Ragged(values[each.name], masks.offsets), each.type) for each in mask_type]
    masks_of_copies = pa.StructArray.from_arrays(lists, fields=list(mask_type))
    mask_offsets = pa.array(np.arange(len(block) + 1, dtype=np.int32) * copies)
    places = (block.offset & SENTENCES, block.offset >> DRAWING_BIT)
    source = [pa.array(block.document), *(pa.array(each.astype(np.int32)) for each in places)]
    columns = [
        list_array(block.ids, arrow_schema.field("input_ids").type),
        pa.array(block.segment_start),
        # Null, not -1: other readers of Arrow then see that there is no label.
        pa.array(block.pair_label, mask=block.pair_label == NO_LABEL),
        pa.ListArray.from_arrays(mask_offsets, masks_of_copies, type=mask_list),
        pa.StructArray.from_arrays(source[: len(source_type)], fields=list(source_type)),
    ]
    if BOUNDARIES in block.columns:
        columns.append(list_array(block.columns[BOUNDARIES], arrow_schema.field(BOUNDARIES).type))
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema)
