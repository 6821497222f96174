"""Stage "dataset", second step: the rows of all parts -> shards, their masks drawn.

`MakeShard` merges one slice of the ranks out of all parts, draws the masks, and writes a shard. Between the two steps stand
only counts: how many rows of each part fall in which bucket of ranks. A unit's output depends on the corpus and the config
alone, so workers, runners and reruns change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline import schema
from pipeline.examples.masking.draw import MaskConfig, Masks, TokenTable, draw_masks
from pipeline.examples.pairs.segments import NO_LABEL
from pipeline.examples.ragged import I64
from pipeline.examples.rows import RowBlock
from pipeline.tokenizer.shared import shared_tokenizer
from pipeline.transforms.arrow import read_arrow, write_arrow
from pipeline.transforms.parts import from_part, id_lists, list_offsets, part_path
from pipeline.transforms.ranks import Slice, bucket_borders

BATCH_ROWS = 2048  # of a record batch; fixed, because it shows in the bytes
HISTOGRAM_BINS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeShard:
    """A slice of the ranks -> one shard. A unit is {"split": …, "path": shard, "slice": a `Slice` as a dict}."""

    directory: str
    parts: int
    info: schema.DatasetInfo
    ids: str
    tokenizer: str
    masks: MaskConfig

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        tokenizer = shared_tokenizer(self.tokenizer, self.info.tokenizer)
        table = TokenTable(size=tokenizer.vocab_size, special=tokenizer.special, word_start=tokenizer.word_start)
        paths = [part_path(self.directory, unit["split"], number) for number in range(self.parts)]
        arrow_schema = schema.dataset_schema(self.info, np.dtype(self.ids))
        figures = ShardFigures(length=self.info.length)

        def batches() -> Iterator[pa.RecordBatch]:
            for block in _rebatch(_merge(paths, Slice(**unit["slice"]))):
                masks = draw_masks(block.keyed(self.info.seed), self.masks, table, range(self.info.copies))
                figures.add(block, masks)
                yield to_batch(block, masks, self.info.copies, arrow_schema)

        write_arrow(unit["path"], arrow_schema, batches())
        return figures.as_json()


def count_buckets(directory: str, split: str, parts: int, buckets: int) -> I64:
    """Rows in each bucket over all parts of a split: int64 [buckets]."""
    counts = np.zeros(buckets, np.int64)
    for number in range(parts):
        ranks = read_arrow(part_path(directory, split, number))["rank"].to_numpy()
        counts += np.diff(bucket_borders(ranks, buckets, 0, buckets))
    return counts


def _merge(paths: list[str], wanted: Slice) -> Iterator[RowBlock]:
    """The rows of a slice in order of rank, bucket by bucket. Files are opened one at a time, however many there are."""
    skip, left = wanted.skip, wanted.rows
    for bucket in range(wanted.first, wanted.end):
        pieces = []
        for path in paths:
            batch = read_arrow(path).combine_chunks().to_batches()
            block = from_part(batch[0]) if batch else None
            if block is not None:
                low, high = bucket_borders(block.rank, wanted.buckets, bucket, bucket + 1)
                pieces.append(block.slice(int(low), int(high)))
        merged = RowBlock.concatenate(pieces).sorted()
        block = merged.slice(skip, min(len(merged), skip + left))
        skip, left = 0, left - len(block)
        yield block


def _rebatch(blocks: Iterator[RowBlock]) -> Iterator[RowBlock]:
    """The same rows in blocks of `BATCH_ROWS`, the last one excepted."""
    rest: RowBlock | None = None
    for block in blocks:
        rest = block if rest is None else RowBlock.concatenate([rest, block])
        whole = len(rest) - len(rest) % BATCH_ROWS
        for first in range(0, whole, BATCH_ROWS):
            yield rest.slice(first, first + BATCH_ROWS)
        rest = rest.slice(whole, len(rest))
    if rest is not None and len(rest):
        yield rest


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
    return pa.RecordBatch.from_arrays(
        [
            id_lists(block, arrow_schema.field("input_ids").type),
            pa.array(block.segment_start),
            pa.array(block.pair_label, mask=block.pair_label == NO_LABEL),
            pa.ListArray.from_arrays(pa.array(row_masks), per_copy, type=mask_list),
            source,
        ],
        schema=arrow_schema,
    )


@dataclass(slots=True, kw_only=True)
class ShardFigures:
    """What is counted of a shard while it is written."""

    length: int
    rows: int = 0
    row_tokens: int = 0
    masked: int = 0
    next: int = 0
    random: int = 0
    none: int = 0
    histogram: npt.NDArray[np.int64] | None = None

    def add(self, block: RowBlock, masks: Masks) -> None:
        bins = np.bincount((block.lengths - 1) * HISTOGRAM_BINS // self.length, minlength=HISTOGRAM_BINS)
        self.histogram = bins if self.histogram is None else self.histogram + bins
        self.rows += len(block)
        self.row_tokens += len(block.input_ids)
        self.masked += len(masks.positions)
        self.next += int((block.pair_label == 0).sum())
        self.random += int((block.pair_label == 1).sum())
        self.none += int((block.pair_label == NO_LABEL).sum())

    def as_json(self) -> dict[str, Any]:
        bins = np.zeros(HISTOGRAM_BINS, np.int64) if self.histogram is None else self.histogram
        return {**asdict(self), "histogram": bins.tolist()}
