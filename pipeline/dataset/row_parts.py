"""Stage "dataset", first step: documents of a corpus shard -> their rows, sorted by rank, in a scratch file for each split.

A unit's output depends on the corpus shard and the config alone, so workers, runners and reruns change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core import storage
from pipeline.core.arrow import write_arrow
from pipeline.core.errors import UsageError
from pipeline.core.ragged import I64, Ragged
from pipeline.core.registry import load
from pipeline.core.shards import SPLITS
from pipeline.corpus.shards import in_split, texts
from pipeline.dataset.masking.candidates import TokenTable
from pipeline.dataset.masking.config import MaskConfig
from pipeline.dataset.masking.draw import text_lengths
from pipeline.dataset.pairs.segments import PairConfig, Segments
from pipeline.dataset.pairs.table import PAIRINGS
from pipeline.dataset.rows import RowBlock, assemble
from pipeline.dataset.tokenized_documents import TokenizedDocuments, tokenize
from pipeline.tokenizer.shared import shared_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class MakePart:
    """Documents -> the part of each split, in `directory`.

    Attributes:
        directory: of the parts.
        tokenizer: a directory that `Tokenizer.save` wrote.
        tokenizer_fingerprint: of that tokenizer.
        ids: dtype of token ids.
        pairing: a name in `PAIRINGS`.
        pairs: what the pairing is told.
        masks: how masks will be drawn; where it is given, the rows whose masks the cap cuts are counted.
    """

    directory: str
    tokenizer: str
    tokenizer_fingerprint: str
    ids: str
    pairing: str
    pairs: PairConfig
    masks: MaskConfig | None = None

    def __call__(self, number: int, table: pa.Table) -> dict[str, Any]:
        """Write the parts.

        Args:
            number: of the corpus shard.
            table: documents of it, as `read_shard` gives them.

        Returns:
            For each split its rows, and counters of what became of its text.
        """
        tokenizer = shared_tokenizer(self.tokenizer, self.tokenizer_fingerprint)
        entry = PAIRINGS[self.pairing]
        result: dict[str, Any] = {}
        for split in SPLITS:
            found = texts(table, in_split(table, split))
            documents = tokenize(found.keys, found.sentences, found.counts, tokenizer, self.ids)
            segments: Segments = load(entry.function)(documents, self.pairs)
            block = assemble(documents, segments, self.pairs.seed, tokenizer.special)
            counters = _counters(documents, segments)
            if self.masks is not None:
                counters["masks/capped_rows"] = _capped(block, self.masks, TokenTable.of(tokenizer), self.pairs.seed)
            path = part_path(self.directory, split, number)
            write_arrow(path, _part_schema(self.ids, entry.packed), [_to_part(block)])
            result[split] = {"rows": len(block), "counters": counters}
        return result


def part_path(directory: str, split: str, number: int) -> str:
    return storage.join(directory, f"{split}-{number:05d}.arrow")


def _part_schema(ids: str, packed: bool) -> pa.Schema:
    fields = {
        "rank": pa.uint64(),
        "input_ids": pa.list_(pa.from_numpy_dtype(np.dtype(ids))),
        "segment_start": pa.int32(),
        "pair_label": pa.int8(),
        "document": pa.uint64(),
        "offset": pa.int32(),
    }
    if packed:
        fields["boundaries"] = pa.list_(pa.uint16())
    return pa.schema(list(fields.items()))


def _to_part(block: RowBlock) -> pa.RecordBatch:
    arrow_schema = _part_schema(str(block.input_ids.dtype), block.boundaries is not None)
    lists = {"input_ids": Ragged(block.input_ids, block.offsets), "boundaries": block.boundaries}
    columns = []
    for field in arrow_schema:
        ragged = lists.get(field.name)
        columns.append(pa.array(getattr(block, field.name)) if ragged is None else _lists(ragged, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema)


def from_part(batch: pa.RecordBatch) -> RowBlock:
    """A part's rows, still in the mapped file."""
    flat = {name: batch[name].to_numpy() for name in ("rank", "segment_start", "pair_label", "document", "offset")}
    ids = _ragged(batch["input_ids"])
    boundaries = _ragged(batch["boundaries"]) if "boundaries" in batch.schema.names else None
    return RowBlock(**flat, input_ids=ids.values, offsets=ids.offsets, boundaries=boundaries)


def _ragged(lists: pa.ListArray) -> Ragged:
    offsets = lists.offsets.to_numpy().astype(np.int64)
    return Ragged(lists.values.to_numpy()[offsets[0] : offsets[-1]], offsets - offsets[0])


def _counters(documents: TokenizedDocuments, segments: Segments) -> dict[str, int]:
    """Where a part's pieces went: read = in_rows + truncated, and rows hold random_next from elsewhere beside."""
    return {
        "read/documents": len(documents),
        "read/sentences": len(documents.sentence_index),
        "dropped/empty_document": documents.empty_documents,
        "dropped/empty_sentence": documents.empty_sentences,
        "tokens/read": len(documents.tokens),
        "tokens/in_rows": int(segments.lengths.sum() - segments.foreign.sum()),
        "tokens/truncated": int(segments.truncated.sum()),
        "tokens/random_next": int(segments.foreign.sum()),
        "rows/single_segment": int((np.diff(segments.pieces) == 1).sum()),
        "rows/sequences": len(segments.lengths),
    }


def _capped(block: RowBlock, masks: MaskConfig, table: TokenTable, seed: int) -> int:
    """Rows that would have more tokens masked than `max_predictions` allows, in at least one copy."""
    if masks.rule == "none":
        return 0
    wanted = masks.wanted(block.lengths, text_lengths(block.keyed(seed), table), np.nextafter(1, 0))
    return int((wanted > masks.max_predictions).sum())


def id_lists(block: RowBlock, list_type: pa.DataType) -> pa.ListArray:
    return _lists(Ragged(block.input_ids, block.offsets), list_type)


def _lists(ragged: Ragged, list_type: pa.DataType) -> pa.ListArray:
    return pa.ListArray.from_arrays(list_offsets(ragged.offsets), pa.array(ragged.values), type=list_type)


def list_offsets(offsets: I64) -> pa.Array:
    if offsets[-1] > np.iinfo(np.int32).max:
        raise UsageError(
            f"a record batch of {offsets[-1]:,} tokens is more than Arrow's lists hold; use smaller corpus shards, or fewer copies"
        )
    return pa.array(offsets.astype(np.int32))
