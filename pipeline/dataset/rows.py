"""Rows from segments, `[CLS] A [SEP] B [SEP]`, in shuffled order; the first step of the stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.core import random_keys, storage
from cloze.core.arrow import write_arrow
from cloze.core.artifacts.artifact import SPLITS
from cloze.core.errors import UsageError
from cloze.core.options import import_object
from cloze.core.ragged import I64, Ragged, offsets_of, ranges
from cloze.core.random_keys import U64
from cloze.pipeline.corpus.write.shards import in_split, texts
from cloze.pipeline.dataset.masking.candidates import (
    MaskConfig,
    TokenProperties,
    UnmaskedRows,
    row_keys,
)
from cloze.pipeline.dataset.masking.draw import text_lengths
from cloze.pipeline.dataset.pairings.registry import PAIRINGS
from cloze.pipeline.dataset.pairings.segments import (
    USE_RANK,
    PairingConfig,
    Segments,
    TokenizedDocuments,
    tokenize,
)
from cloze.pipeline.tokenizer.special import SpecialTokens
from cloze.pipeline.tokenizer.tokenizer import shared_tokenizer

# columns with one number per row
FLAT = ("rank", "segment_start", "pair_label", "document", "offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlock:
    """Unmasked rows, as a dataset shard stores them.

    Attributes:
        rank: uint64 [R], ascending shuffle keys; they order the rows of the whole dataset.
        input_ids: [T], all rows concatenated, special tokens included.
        offsets: int64 [R + 1], start of each row in `input_ids`, and T.
        segment_start: int32 [R], start of B; the row's length if there is no B.
        pair_label: int8 [R], NO_LABEL without a label.
        document: uint64 [R], key of the document of segment A.
        offset: int32 [R], sentence of that document in which the row begins.
        boundaries: uint16, start positions of each row's sequences, 0 first; None unless packed.
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

    def with_keys(self, seed: int) -> UnmaskedRows:
        """Return the rows as input of masking."""
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
        """Return the rows at `index`, in the order of `index`."""
        ids = self._ids.take(index)
        return RowBlock(
            **{name: getattr(self, name)[index] for name in FLAT},
            input_ids=ids.values,
            offsets=ids.offsets,
            boundaries=None if self.boundaries is None else self.boundaries.take(index),
        )

    @classmethod
    def concatenate(cls, blocks: Sequence[RowBlock]) -> RowBlock:
        """Concatenate the rows of one or more blocks of the same kind."""
        flat = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in FLAT}
        ids = Ragged.concatenate([block._ids for block in blocks])
        boundaries = [block.boundaries for block in blocks if block.boundaries is not None]
        return cls(
            **flat,
            input_ids=ids.values,
            offsets=ids.offsets,
            boundaries=Ragged.concatenate(boundaries) if boundaries else None,
        )


def assemble(
    documents: TokenizedDocuments, segments: Segments, seed: int, special: SpecialTokens
) -> RowBlock:
    """Build rows from segments, with special tokens, in ascending order of the shuffle key.

    Args:
        documents: documents that the segments' ranges point into.
        segments: R rows: `[CLS] A [SEP]`, `[CLS] A [SEP] B [SEP]`, or, if packed, a [CLS] before
            every range.
        seed: seed of the dataset.
        special: ids of [CLS] and [SEP].
    """
    document = documents.keys[segments.document]
    rank = random_keys.fold_in(row_keys(seed, document, segments.offset), USE_RANK)
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
    return RowBlock(
        rank=rank[order],
        input_ids=source[ranges(range_starts.reshape(-1), range_lengths.reshape(-1))],
        offsets=offsets,
        segment_start=(
            np.where(has_second & segments.paired, ends[starts.offsets[:-1] + 1], offsets[1:])
            - offsets[:-1]
        ).astype(np.int32),
        pair_label=segments.pair_label[order],
        document=document[order],
        offset=segments.offset[order],
        boundaries=Ragged(
            (ends[:-1] - np.repeat(offsets[:-1], starts.lengths)).astype(np.uint16), starts.offsets
        )
        if segments.packed
        else None,
    )


# First step of the stage: documents of a corpus shard -> an intermediate file per split, sorted.


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRows:
    """Documents -> an intermediate file per split, in `directory`.

    Attributes:
        directory: directory of the intermediate files.
        tokenizer: directory that `Tokenizer.save` wrote.
        tokenizer_fingerprint: fingerprint of the tokenizer.
        ids: dtype of token ids.
        pairing: a name in `PAIRINGS`.
        pairs: config of the pairing.
        masks: config of the masks; if given, rows with fewer masks because of the cap are counted.
    """

    directory: str
    tokenizer: str
    tokenizer_fingerprint: str
    ids: str
    pairing: str
    pairs: PairingConfig
    masks: MaskConfig | None = None

    def __call__(self, number: int, table: pa.Table) -> dict[str, Any]:
        """Write the intermediate files.

        Args:
            number: index of the corpus shard.
            table: documents of the shard, as `read_shard` returns them.

        Returns:
            Number of rows and counters of the text for each split.
        """
        tokenizer = shared_tokenizer(self.tokenizer, self.tokenizer_fingerprint)
        pairing = PAIRINGS[self.pairing]
        result: dict[str, Any] = {}
        for split in SPLITS:
            split_documents = texts(table, in_split(table, split))
            documents = tokenize(
                split_documents.keys,
                split_documents.sentences,
                split_documents.counts,
                tokenizer,
                self.ids,
            )
            segments: Segments = import_object(pairing.function)(documents, self.pairs)
            block = assemble(documents, segments, self.pairs.seed, tokenizer.special)
            counters = _counters(documents, segments)
            if self.masks is not None:
                counters["masks/capped_rows"] = _capped(
                    block, self.masks, TokenProperties.of(tokenizer), self.pairs.seed
                )
            path = part_path(self.directory, split, number)
            write_arrow(path, _part_schema(self.ids, pairing.packed), [_to_part(block)])
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
        columns.append(
            pa.array(getattr(block, field.name)) if ragged is None else _lists(ragged, field.type)
        )
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema)


def from_part(batch: pa.RecordBatch) -> RowBlock:
    """Return the rows of an intermediate file, still memory-mapped."""
    flat = {
        name: batch[name].to_numpy()
        for name in ("rank", "segment_start", "pair_label", "document", "offset")
    }
    ids = _ragged(batch["input_ids"])
    boundaries = _ragged(batch["boundaries"]) if "boundaries" in batch.schema.names else None
    return RowBlock(**flat, input_ids=ids.values, offsets=ids.offsets, boundaries=boundaries)


def _ragged(lists: pa.ListArray) -> Ragged:
    offsets = lists.offsets.to_numpy().astype(np.int64)
    return Ragged(lists.values.to_numpy()[offsets[0] : offsets[-1]], offsets - offsets[0])


def _counters(documents: TokenizedDocuments, segments: Segments) -> dict[str, int]:
    """Count the part's tokens: read = in_rows + truncated; rows also contain random_next."""
    return {
        "read/documents": len(documents),
        "read/sentences": len(documents.sentence_index),
        "dropped/empty_document": documents.empty_documents,
        "dropped/empty_sentence": documents.empty_sentences,
        "tokens/read": len(documents.tokens),
        "tokens/in_rows": int(segments.lengths.sum() - segments.random_next_tokens.sum()),
        "tokens/truncated": int(segments.truncated.sum()),
        "tokens/random_next": int(segments.random_next_tokens.sum()),
        "rows/single_segment": int((np.diff(segments.range_offsets) == 1).sum()),
        "rows/sequences": len(segments.lengths),
    }


def _capped(block: RowBlock, masks: MaskConfig, table: TokenProperties, seed: int) -> int:
    """Count the rows whose masks `max_predictions` limits in at least one copy."""
    if masks.rule == "none":
        return 0
    targets = masks.target_count(
        block.lengths, text_lengths(block.with_keys(seed), table), np.nextafter(1, 0)
    )
    return int((targets > masks.max_predictions).sum())


def id_lists(block: RowBlock, list_type: pa.DataType) -> pa.ListArray:
    return _lists(Ragged(block.input_ids, block.offsets), list_type)


def _lists(ragged: Ragged, list_type: pa.DataType) -> pa.ListArray:
    return pa.ListArray.from_arrays(
        list_offsets(ragged.offsets), pa.array(ragged.values), type=list_type
    )


def list_offsets(offsets: I64) -> pa.Array:
    if offsets[-1] > np.iinfo(np.int32).max:
        raise UsageError(
            f"a record batch of {offsets[-1]:,} tokens is more than Arrow's lists hold; use "
            f"smaller corpus shards, or fewer copies"
        )
    return pa.array(offsets.astype(np.int32))
