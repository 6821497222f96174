"""Stage "dataset", first step: a corpus shard -> its rows, sorted by rank, in a scratch file for each split.

A unit's output depends on the corpus shard and the config alone, so workers, runners and reruns change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline import schema, storage
from pipeline.errors import UsageError
from pipeline.examples.documents import Documents, tokenize
from pipeline.examples.pairs import PAIRINGS
from pipeline.examples.pairs.segments import PairConfig, Segments
from pipeline.examples.ragged import I64
from pipeline.examples.rows import RowBlock, assemble
from pipeline.job import load
from pipeline.tokenizer.shared import shared_tokenizer
from pipeline.transforms.arrow import write_arrow
from pipeline.transforms.corpus_shards import in_split, read_shard, texts


@dataclass(frozen=True, slots=True, kw_only=True)
class MakePart:
    """Corpus shard -> rows of each split, in `directory`. A unit is {"number": n, "path": shard}."""

    directory: str
    tokenizer: str  # a directory that `Tokenizer.save` wrote, with its fingerprint
    tokenizer_fingerprint: str
    ids: str  # dtype of ids
    pairing: str
    pairs: PairConfig

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        tokenizer = shared_tokenizer(self.tokenizer, self.tokenizer_fingerprint)
        table = read_shard(unit["path"])
        result: dict[str, Any] = {}
        for split in schema.SPLITS:
            found = texts(table, in_split(table, split))
            documents = tokenize(found.keys, found.sentences, found.counts, tokenizer, self.ids)
            segments = load(PAIRINGS[self.pairing].function)(documents, self.pairs)
            block = assemble(documents, segments, self.pairs.seed, tokenizer.special)
            write_arrow(part_path(self.directory, split, unit["number"]), _part_schema(self.ids), [_to_part(block)])
            result[split] = {"rows": len(block), "counters": _counters(documents, segments)}
        return result


def part_path(directory: str, split: str, number: int) -> str:
    return storage.join(directory, f"{split}-{number:05d}.arrow")


def _part_schema(ids: str) -> pa.Schema:
    fields = {
        "rank": pa.uint64(),
        "input_ids": pa.list_(pa.from_numpy_dtype(np.dtype(ids))),
        "segment_start": pa.int32(),
        "pair_label": pa.int8(),
        "document": pa.uint64(),
        "offset": pa.int32(),
    }
    return pa.schema(list(fields.items()))


def _to_part(block: RowBlock) -> pa.RecordBatch:
    arrow_schema = _part_schema(str(block.input_ids.dtype))
    flat = {name: pa.array(getattr(block, name)) for name in arrow_schema.names if name != "input_ids"}
    flat["input_ids"] = id_lists(block, arrow_schema.field("input_ids").type)
    return pa.RecordBatch.from_arrays([flat[name] for name in arrow_schema.names], schema=arrow_schema)


def from_part(batch: pa.RecordBatch) -> RowBlock:
    """A part's rows, still in the mapped file."""
    flat = {name: batch[name].to_numpy() for name in ("rank", "segment_start", "pair_label", "document", "offset")}
    lists = batch["input_ids"]
    return RowBlock(**flat, input_ids=lists.values.to_numpy(), offsets=lists.offsets.to_numpy().astype(np.int64))


def _counters(documents: Documents, segments: Segments) -> dict[str, int]:
    """Where a part's pieces went: read = in_rows + truncated, and rows hold random_next from elsewhere beside."""
    in_rows = int(segments.lengths.sum() - segments.foreign.sum())
    return {
        "read/documents": len(documents),
        "read/sentences": len(documents.sentence_index),
        "dropped/empty_document": documents.empty_documents,
        "dropped/empty_sentence": documents.empty_sentences,
        "tokens/read": len(documents.tokens),
        "tokens/in_rows": in_rows,
        "tokens/truncated": int(segments.truncated.sum()),
        "tokens/random_next": int(segments.foreign.sum()),
        "rows/single_segment": int((segments.lengths[:, 1] == 0).sum()),
    }


def id_lists(block: RowBlock, list_type: pa.DataType) -> pa.ListArray:
    return pa.ListArray.from_arrays(list_offsets(block.offsets), pa.array(block.input_ids), type=list_type)


def list_offsets(offsets: I64) -> pa.Array:
    if offsets[-1] > np.iinfo(np.int32).max:
        raise UsageError(
            f"a record batch of {offsets[-1]:,} tokens is more than Arrow's lists hold; use smaller corpus shards, or fewer copies"
        )
    return pa.array(offsets.astype(np.int32))
