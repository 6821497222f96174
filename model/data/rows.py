"""Rows of a batch as ragged numpy arrays, read from the record batches of shards.

One checked numpy call per column and file. Offsets are compared with the sizes of the buffers that
they point into, and numpy checks the bounds of the file. A damaged shard is named, and nothing
outside its own values is read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cloze.core.errors import DataError
from cloze.core.ragged import I64, offsets_of, ranges
from cloze.core.random_keys import U64
from cloze.model.data import shard_file as at
from cloze.model.data.shard_file import RecordBatch, ShardFile
from cloze.model.layers.batch import Batch
from cloze.pipeline.dataset.masking.candidates import DRAWING_BIT
from cloze.pipeline.dataset.schema import NO_PAIR, DatasetInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedRows:
    """B rows with one mask copy each.

    Attributes:
        ids: [sum of lengths], token ids of the unmasked rows.
        lengths: int64 [B].
        segment_start: int64 [B], start of segment B; the row's length if there is none.
        pair_labels: int64 [B], -100 for none.
        positions: [sum of counts], predicted positions within their rows.
        replacements: [sum of counts], ids at these positions in the masked rows.
        counts: int64 [B], predicted positions per row.
        documents: uint64 [B], document keys; part of the seed of a row's masks.
        sentences: int64 [B], places in the documents, see `row_keys`; part of the seed of a row's
            masks.
        boundaries: [sum of boundary_counts], starts of the sequences in packed rows.
        boundary_counts: int64 [B], sequences per row; None if rows are not packed.
    """

    ids: npt.NDArray[Any]
    lengths: I64
    segment_start: I64
    pair_labels: I64
    positions: npt.NDArray[Any]
    replacements: npt.NDArray[Any]
    counts: I64
    documents: U64
    sentences: I64
    boundaries: npt.NDArray[Any]
    boundary_counts: I64 | None = None

    @classmethod
    def none(cls) -> MaskedRows:
        empty = np.zeros(0, np.int64)
        ragged = dict.fromkeys(("ids", "positions", "replacements", "boundaries"), empty)
        flat = dict.fromkeys(
            ("lengths", "segment_start", "pair_labels", "counts", "sentences"), empty
        )
        return cls(**ragged, **flat, documents=empty.astype(np.uint64))

    @classmethod
    def concatenate(cls, parts: Sequence[MaskedRows]) -> MaskedRows:
        """Concatenate rows; either all parts are packed or none is."""
        if len(parts) == 1:
            return parts[0]
        names = (field.name for field in fields(cls) if getattr(parts[0], field.name) is not None)
        return cls(
            **{name: np.concatenate([getattr(rows, name) for rows in parts]) for name in names}
        )

    def with_masks(
        self, positions: npt.NDArray[Any], replacements: npt.NDArray[Any], counts: I64
    ) -> MaskedRows:
        """Return the rows with other masks."""
        return replace(self, positions=positions, replacements=replacements, counts=counts)

    def without_masks(self, bare: npt.NDArray[np.bool_]) -> MaskedRows:
        """Return the rows without masks where `bare`, bool [B], is true."""
        keep = ~np.repeat(bare, self.counts)
        return self.with_masks(
            self.positions[keep], self.replacements[keep], np.where(bare, 0, self.counts)
        )

    def ordered(self, order: I64) -> MaskedRows:
        """Return the rows with numbers `order`, int64 [B], in that order."""
        values: dict[str, Any] = {}
        for counts_name, names in _LISTS.items():
            if (counts := getattr(self, counts_name)) is not None:
                values[counts_name] = counts[order]
                # Lists move with their rows: each field is gathered by the places of its own
                # values.
                inside = ranges(offsets_of(counts)[:-1][order], counts[order])
                for name in names:
                    values[name] = getattr(self, name)[inside]
        for name in _NUMBERS:
            values[name] = getattr(self, name)[order]
        return replace(self, **values)


# Fields of `MaskedRows`: lists by the field with their lengths, and one number per row.
_LISTS = {
    "lengths": ("ids",),
    "counts": ("positions", "replacements"),
    "boundary_counts": ("boundaries",),
}
_NUMBERS = ("segment_start", "pair_labels", "documents", "sentences")


class RowTransform(Protocol):
    """Collation of an objective that does not read masked rows as they are stored."""

    def collate(
        self, rows: MaskedRows, samples: I64, plain: Callable[[MaskedRows], Batch]
    ) -> Batch:
        """Return the batch of B rows.

        Args:
            samples: int64 [B], sample numbers of the rows in the run. What is drawn depends on
                them and a seed alone, so resuming is exact and ranks agree.
            plain: collates rows as they are stored.
        """
        ...

    def empty(self, batch: Batch) -> Batch:
        """Return a batch of padding with the fields that `collate` adds."""
        ...


# Index of a split's record batches, filled on demand.

CACHE_BYTES = 256 << 20  # bytes of decompressed record batches


class RecordBatchIndex:
    """Record batches, numbered over all shards.

    Attributes:
        files: open shards.
        file_of: int64 [batches], shard of each record batch.
        begins: int64 [batches, BUFFERS], `RecordBatch.begins` of the loaded record batches.
        sizes: int64 [batches, BUFFERS], `RecordBatch.sizes` of the loaded record batches.
        group: int64 [batches]; equal numbers have the same arrays.
        loaded: loaded record batches by number.
    """

    def __init__(self, files: list[ShardFile]) -> None:
        counts = [len(opened.rows) for opened in files]
        self.files = files
        self.file_of = np.repeat(np.arange(len(counts)), counts)
        self._number = np.concatenate(
            [np.zeros(0, np.int64), *(np.arange(count) for count in counts)]
        )
        self.begins = np.zeros((sum(counts), at.BUFFERS), np.int64)
        self.sizes = np.zeros((sum(counts), at.BUFFERS), np.int64)
        self.group = np.zeros(sum(counts), np.int64)
        self._is_loaded = np.zeros(sum(counts), np.bool_)
        self.loaded: dict[int, RecordBatch] = {}
        # Bytes by record batch, least recently used first.
        self._unpacked: OrderedDict[int, int] = OrderedDict()
        self.unpacked_bytes = 0

    def find(self, batches: I64) -> None:
        """Load these record batches; decompressed ones stay at least until the next call.

        Raises:
            DataError: a record batch is damaged.
        """
        # Mapped batches are never dropped, so there is no order of use to keep.
        if self._is_loaded[batches].all() and not self._unpacked:
            return
        requested = np.unique(batches).tolist()
        for batch in requested:
            if not self._is_loaded[batch]:
                self._find(batch)
            elif batch in self._unpacked:
                self._unpacked.move_to_end(batch)
        while self.unpacked_bytes > CACHE_BYTES and len(self._unpacked) > len(requested):
            batch, size = self._unpacked.popitem(last=False)
            del self.loaded[batch]
            self._is_loaded[batch], self.unpacked_bytes = False, self.unpacked_bytes - size

    def _find(self, batch: int) -> None:
        file = int(self.file_of[batch])
        record_batch = self.files[file].record_batch(int(self._number[batch]))
        self.begins[batch], self.sizes[batch] = record_batch.begins, record_batch.sizes
        # Batches of a mapped file share its arrays; a decompressed one has arrays of its own.
        self.group[batch] = len(self.files) + batch if record_batch.unpacked else file
        self.loaded[batch], self._is_loaded[batch] = record_batch, True
        if record_batch.unpacked:
            self._unpacked[batch] = record_batch.unpacked
            self.unpacked_bytes += record_batch.unpacked

    def most_predictions(self) -> int:
        """Return the maximum number of predictions of a row in any mask copy.

        Reads every offset once.
        """
        maximum = 0
        for batch in range(len(self._number)):
            self.find(np.array([batch]))
            record_batch = self.loaded[batch]
            rows = int(self.files[int(self.file_of[batch])].rows[self._number[batch]])
            if record_batch.sizes[at.MASK_OFFSETS] > rows:
                masks = int(
                    record_batch.arrays[at.MASK_OFFSETS][
                        record_batch.begins[at.MASK_OFFSETS] + rows
                    ]
                )
                count = max(0, min(masks + 1, int(record_batch.sizes[at.POSITION_OFFSETS])))
                begin = int(record_batch.begins[at.POSITION_OFFSETS])
                offsets = record_batch.arrays[at.POSITION_OFFSETS][begin : begin + count]
                maximum = max(maximum, int(np.diff(offsets).max(initial=0)))
        return maximum


class RowReader:
    """Rows `local` of record batches `batches`, int64 [B] each; those of one array are adjacent.

    Args:
        blocks: record batches, of which these are loaded.
        info: dataset properties recorded in the shards.
    """

    def __init__(
        self, blocks: RecordBatchIndex, info: DatasetInfo, batches: I64, local: I64
    ) -> None:
        self.blocks, self.info, self.batches, self.local = blocks, info, batches, local
        self._begins, self._sizes = blocks.begins[batches].T, blocks.sizes[batches].T
        # Where the arrays change: one numpy call reads all rows between two borders.
        starts = np.flatnonzero(np.diff(blocks.group[batches], prepend=-1))
        self._borders = np.append(starts, len(batches))
        self._arrays = [blocks.loaded[batch].arrays for batch in batches[starts].tolist()]

    def _gather(self, buffer: int, index: I64, borders: I64 | None = None) -> npt.NDArray[Any]:
        """Return the values at `index` of their arrays, of which each begins at one of `borders`.

        Args:
            borders: None: `index` has one value per row, from the start of its record batch.
        """
        if borders is None:
            index, borders = self._begins[buffer] + index, self._borders
        if len(self._arrays) == 1:
            values: npt.NDArray[Any] = self._arrays[0][buffer][index]
            return values
        parts, begin = [], 0
        for arrays, end in zip(self._arrays, borders[1:].tolist(), strict=True):
            parts.append(arrays[buffer][index[begin:end]])
            begin = end
        return np.concatenate(parts)

    def _lists(self, offsets: int, values: int, index: I64) -> tuple[npt.NDArray[Any], I64]:
        """Return the lists at `index`, concatenated, and their lengths."""
        self._require((index < 0) | (index + 1 >= self._sizes[offsets]), "a list that is not there")
        # Offsets come from the file. They are compared with the buffer that they point into before
        # they index anything: a flipped bit must name its shard, not read foreign memory.
        start = self._gather(offsets, index).astype(np.int64)
        stop = self._gather(offsets, index + 1).astype(np.int64)
        self._require(
            (start < 0) | (stop < start) | (stop > self._sizes[values]), "an offset outside of it"
        )
        lengths = stop - start
        indices = ranges(self._begins[values] + start, lengths)
        return self._gather(values, indices, offsets_of(lengths)[self._borders]), lengths

    def rows(self, copies: I64 | None) -> MaskedRows:
        """Return the rows with masks of copies `copies`, or without masks."""
        local, info = self.local, self.info
        ids, lengths = self._lists(at.ID_OFFSETS, at.IDS, local)
        positions, replacements, counts = ids[:0], ids[:0], np.zeros(len(local), np.int64)
        boundaries, sequences = ids[:0], None
        self._require((lengths < 1) | (lengths > info.length), "a row whose length cannot be")
        if copies is not None:
            copy = self._gather(at.MASK_OFFSETS, local).astype(np.int64) + copies
            self._require(
                (copies < 0) | (copy >= self._gather(at.MASK_OFFSETS, local + 1)),
                "a row that lacks a mask copy",
            )
            positions, counts = self._lists(at.POSITION_OFFSETS, at.POSITIONS, copy)
            replacements, replaced = self._lists(at.REPLACEMENT_OFFSETS, at.REPLACEMENTS, copy)
            self._require(replaced != counts, "a mask whose lists differ in length")
            outside = positions >= np.repeat(lengths, counts)
            self._require(outside, "a mask outside of its row", counts)
        for values, of_rows in ((ids, lengths), (replacements, counts)):
            beyond = values >= info.vocab_size
            self._require(beyond, f"ids beyond the vocabulary of {info.vocab_size}", of_rows)
        if info.packed:
            boundaries, sequences = self._lists(at.BOUNDARY_OFFSETS, at.BOUNDARIES, local)
            self._check_boundaries(boundaries.astype(np.int64), sequences, lengths)
        places = self._gather(at.SENTENCES, local).astype(np.int64)
        if info.drawings > 1:
            places += self._gather(at.DRAWINGS, local).astype(np.int64) << DRAWING_BIT
        labels = self._gather(at.LABELS, local).astype(np.int64)
        has_validity = self._sizes[at.VALID] > 0
        if has_validity.any():
            # Arrow packs eight rows into a byte of the validity bitmap, the lowest bit first.
            indices = np.where(has_validity, self._begins[at.VALID] + (local >> 3), 0)
            bits = (
                self._gather(at.VALID, indices, self._borders) >> (local & 7).astype(np.uint8) & 1
            )
            labels[has_validity & (bits == 0)] = NO_PAIR
        return MaskedRows(
            ids=ids,
            lengths=lengths,
            segment_start=self._gather(at.SEGMENT_START, local).astype(np.int64),
            pair_labels=labels,
            positions=positions,
            replacements=replacements,
            counts=counts,
            documents=self._gather(at.DOCUMENTS, local),
            sentences=places,
            boundaries=boundaries,
            boundary_counts=sequences,
        )

    def _require(self, wrong: npt.NDArray[np.bool_], what: str, counts: I64 | None = None) -> None:
        """Raise DataError with the file of the first row for which `wrong` is true.

        Args:
            wrong: bool [B], or [sum of counts] for the values of the rows' lists.
        """
        if wrong.any():
            owners = np.arange(len(self.batches))
            row = (owners if counts is None else np.repeat(owners, counts))[wrong.argmax()]
            file = self.blocks.files[int(self.blocks.file_of[self.batches[row]])].file
            raise DataError(f"{file} is damaged (it has {what}); make the dataset again")

    def _check_boundaries(self, begins: I64, sequences: I64, lengths: I64) -> None:
        self._require(sequences < 1, "a packed row without sequences")
        # Sequences begin in ascending order, the first of each row at 0.
        is_valid = np.diff(begins, prepend=-1) > 0
        row_starts = offsets_of(sequences)[:-1]
        is_valid[row_starts] = begins[row_starts] == 0
        is_valid &= begins < np.repeat(lengths, sequences)
        self._require(~is_valid, "boundaries that cannot be", sequences)
