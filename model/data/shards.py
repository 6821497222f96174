"""Dataset shards as one table of rows: one checked numpy call per column and file.

Offsets are compared with the sizes of the buffers that they point into, and numpy checks the bounds
of the file. A damaged shard is named, and nothing outside its own values is read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cloze.core import storage
from cloze.core.artifacts import artifact, fingerprints
from cloze.core.artifacts.artifact import TRAIN
from cloze.core.errors import DataError
from cloze.core.ragged import I64, offsets_of, ranges
from cloze.model.data import shard_file
from cloze.model.data.rows import MaskedRows
from cloze.model.data.sampler import LengthBins
from cloze.model.data.shard_file import RecordBatchIndex, ShardFile
from cloze.pipeline.dataset.masking.candidates import DRAWING_BIT
from cloze.pipeline.dataset.schema import NO_PAIR, DatasetInfo


def read_rows(
    blocks: RecordBatchIndex, info: DatasetInfo, batches: I64, local: I64, copies: I64 | None
) -> MaskedRows:
    """Read rows `local` of record batches `batches`, int64 [B] each, in that order.

    Args:
        blocks: record batches.
        info: dataset properties recorded in the shards.
        copies: int64 [B], mask copies; None: no masks.

    Raises:
        DataError: a row has impossible values; the message names its file.
    """
    blocks.find(batches)
    group = blocks.group[batches]
    if (group == group[0]).all():
        return _Reading(blocks, info, batches, local).rows(copies)
    order = np.argsort(group, kind="stable")  # rows of the same arrays become adjacent
    copies = None if copies is None else copies[order]
    return (
        _Reading(blocks, info, batches[order], local[order])
        .rows(copies)
        .ordered(np.argsort(order, kind="stable"))
    )


class _Reading:
    """Single call of `read_rows`; record batches that share arrays are adjacent."""

    def __init__(
        self, blocks: RecordBatchIndex, info: DatasetInfo, batches: I64, local: I64
    ) -> None:
        self.blocks, self.info, self.batches, self.local = blocks, info, batches, local
        self._begins, self._sizes = blocks.begins[batches].T, blocks.sizes[batches].T
        # Where the arrays change: one numpy call reads all rows between two borders.
        self._borders = np.append(
            np.flatnonzero(np.diff(blocks.group[batches], prepend=-1)), len(batches)
        )
        self._arrays = [blocks[int(batches[border])].arrays for border in self._borders[:-1]]

    def _gather(self, buffer: int, index: I64, borders: I64) -> npt.NDArray[Any]:
        """Return the values at `index`; indices between two `borders` refer to one array."""
        if len(self._arrays) == 1:
            values: npt.NDArray[Any] = self._arrays[0][buffer][index]
            return values
        ends = borders.tolist()
        slices = zip(self._arrays, ends[:-1], ends[1:], strict=True)
        return np.concatenate([arrays[buffer][index[begin:end]] for arrays, begin, end in slices])

    def _at(self, buffer: int, index: I64) -> npt.NDArray[Any]:
        """Return one value per row, at `index` of its buffer."""
        return self._gather(buffer, self._begins[buffer] + index, self._borders)

    def _lists(self, offsets: int, values: int, index: I64) -> tuple[npt.NDArray[Any], I64]:
        """Return the lists at `index`, concatenated, and their lengths."""
        self._require((index < 0) | (index + 1 >= self._sizes[offsets]), "a list that is not there")
        # Offsets come from the file. They are compared with the buffer that they point into before
        # they index anything: a flipped bit must name its shard, not read foreign memory.
        start = self._at(offsets, index).astype(np.int64)
        stop = self._at(offsets, index + 1).astype(np.int64)
        self._require(
            (start < 0) | (stop < start) | (stop > self._sizes[values]), "an offset outside of it"
        )
        lengths = stop - start
        indices = ranges(self._begins[values] + start, lengths)
        return self._gather(values, indices, offsets_of(lengths)[self._borders]), lengths

    def rows(self, copies: I64 | None) -> MaskedRows:
        """Return the rows with masks of copies `copies`, or without masks."""
        local = self.local
        ids, lengths = self._lists(shard_file.ID_OFFSETS, shard_file.IDS, local)
        positions, replacements, counts = ids[:0], ids[:0], np.zeros(len(local), np.int64)
        if copies is not None:
            first_copy = self._at(shard_file.MASK_OFFSETS, local).astype(np.int64)
            self._require(
                (copies < 0)
                | (first_copy + copies >= self._at(shard_file.MASK_OFFSETS, local + 1)),
                "a row that lacks a mask copy",
            )
            positions, counts = self._lists(
                shard_file.POSITION_OFFSETS, shard_file.POSITIONS, first_copy + copies
            )
            replacements, replaced = self._lists(
                shard_file.REPLACEMENT_OFFSETS, shard_file.REPLACEMENTS, first_copy + copies
            )
            self._require(replaced != counts, "a mask whose lists differ in length")
        result = MaskedRows(
            ids=ids,
            lengths=lengths,
            segment_start=self._at(shard_file.SEGMENT_START, local).astype(np.int64),
            pair_labels=self._pair_labels(),
            positions=positions,
            replacements=replacements,
            counts=counts,
            documents=self._at(shard_file.DOCUMENTS, local),
            sentences=self._places(),
            boundaries=ids[:0],
        )
        self._check(result)
        if self.info.packed:
            boundaries, sequences = self._lists(
                shard_file.BOUNDARY_OFFSETS, shard_file.BOUNDARIES, local
            )
            self._check_boundaries(boundaries.astype(np.int64), sequences, lengths)
            result = replace(result, boundaries=boundaries, boundary_counts=sequences)
        return result

    def _places(self) -> I64:
        places = self._at(shard_file.SENTENCES, self.local).astype(np.int64)
        if self.info.drawings > 1:
            drawing = self._at(shard_file.DRAWINGS, self.local).astype(np.int64)
            places += drawing << DRAWING_BIT
        return places

    def _pair_labels(self) -> I64:
        labels = self._at(shard_file.LABELS, self.local).astype(np.int64)
        has_validity = self._sizes[shard_file.VALID] > 0
        if has_validity.any():
            # Arrow packs eight rows into a byte of the validity bitmap, the lowest bit first.
            indices = np.where(has_validity, self._begins[shard_file.VALID] + (self.local >> 3), 0)
            bits = (
                self._gather(shard_file.VALID, indices, self._borders)
                >> (self.local & 7).astype(np.uint8)
                & 1
            )
            labels[has_validity & (bits == 0)] = NO_PAIR
        return labels

    def _require(self, wrong: npt.NDArray[np.bool_], what: str) -> None:
        """Raise DataError with the file of the first row for which `wrong`, bool [B], is true."""
        if wrong.any():
            file = self.blocks.files[
                int(self.blocks.file_of[self.batches[int(wrong.argmax())]])
            ].file
            raise DataError(f"{file} is damaged (it has {what}); make the dataset again")

    def _check(self, rows: MaskedRows) -> None:
        """Raise DataError if a row has an impossible length, id or mask position."""
        info = self.info
        self._require(
            (rows.lengths < 1) | (rows.lengths > info.length), "a row whose length cannot be"
        )
        message = f"ids beyond the vocabulary of {info.vocab_size}"
        for values, counts in ((rows.ids, rows.lengths), (rows.replacements, rows.counts)):
            # The maximum of all is cheap; which row has it is looked for only if there is one.
            if int(values.max(initial=0)) >= info.vocab_size:
                self._require(_any(values >= info.vocab_size, counts), message)
        out_of_row = rows.positions >= np.repeat(rows.lengths, rows.counts)
        if out_of_row.any():
            self._require(_any(out_of_row, rows.counts), "a mask outside of its row")

    def _check_boundaries(self, begins: I64, sequences: I64, lengths: I64) -> None:
        self._require(sequences < 1, "a packed row without sequences")
        # Sequences begin in ascending order, the first of each row at 0.
        is_valid = np.diff(begins, prepend=-1) > 0
        row_starts = offsets_of(sequences)[:-1]
        is_valid[row_starts] = begins[row_starts] == 0
        is_valid &= begins < np.repeat(lengths, sequences)
        self._require(_any(~is_valid, sequences), "boundaries that cannot be")


def _any(values: npt.NDArray[np.bool_], counts: I64) -> npt.NDArray[np.bool_]:
    """Return which lists contain a true value, bool [B]; `counts` are the lists' lengths."""
    list_numbers = np.repeat(np.arange(len(counts)), counts)
    return np.bincount(list_numbers[values], minlength=len(counts)) > 0


# Memory-mapped tables of rows, from which samplers draw and the collator reads.

# Bytes; up to this size datasets are hashed before first use, larger ones by `cloze verify`.
VERIFY_BYTES = 32 << 30
WINDOW_BATCHES = 32  # record batches of a compressed dataset that are drawn from at a time


class MaskSource(Protocol):
    """Draws masks instead of reading stored ones; see `cloze.model.data.rows.DynamicMasker`."""

    def __call__(self, rows: MaskedRows, copies: I64) -> MaskedRows: ...

    def most(self, length: int) -> int:
        """Return the maximum number of predictions of a row of at most `length` tokens."""


class RowTable(Protocol):
    """Rows of one split of one or more datasets, as samplers number them."""

    @property
    def info(self) -> DatasetInfo | None:
        """Dataset properties recorded in the shards; None if there are no shards."""
        ...

    @property
    def is_binned(self) -> bool:
        """Whether the rows are in bins of similar length."""
        ...

    def __len__(self) -> int: ...

    def take(self, rows: I64, copies: I64) -> MaskedRows:
        """Return the rows `rows` with mask copies `copies`, both int64 [B]."""
        ...

    def most_predictions(self) -> int:
        """Return the maximum number of predictions of a row in any mask copy."""
        ...

    def first(self, number: int) -> I64:
        """Return the numbers of about `number` representative rows, int64.

        Shards are sorted by a hash, so the first rows of a dataset represent it. A mixture takes
        the first rows of each dataset by its share.
        """
        ...


class ShardedRows:
    """Rows of one split, numbered over all shards in the order of the file names.

    Args:
        path: dataset artifact, or a directory with shards.
        split: `train` or `heldout`.
        info: dataset properties of the other split, which this one must have.
        fresh: draws the masks; None: read the stored ones.

    Raises:
        DataError: a shard is damaged, no dataset shard, or was made with other settings.
    """

    def __init__(
        self,
        path: str,
        split: str = TRAIN,
        info: DatasetInfo | None = None,
        fresh: MaskSource | None = None,
    ) -> None:
        names = [
            name
            for name in storage.list_files(path)
            if name.startswith(f"{split}-") and name.endswith(".arrow")
        ]
        self.path, self.split = path, split
        self.files = tuple(storage.join(path, name) for name in names)
        self.info, self._fresh = info, fresh
        shard_files = [ShardFile(file, masks=fresh is None) for file in self.files]
        all_settings = [
            (shard.info, shard.dtypes, (shard.layout and shard.layout.bin_boundaries) or ())
            for shard in shard_files
        ]
        for shard, settings in zip(shard_files, all_settings, strict=True):
            if settings != all_settings[0] or (info is not None and shard.info != info):
                raise DataError(
                    f"{shard.file} was made with other settings than its neighbours; make "
                    f"{self.path} again"
                )
        self.info = shard_files[0].info if shard_files else info
        sizes = np.concatenate([np.zeros(0, np.int64), *(shard.rows for shard in shard_files)])
        cells = np.array([shard.cells for shard in shard_files] or np.zeros((0, 1, 1), np.int64))
        self._cells = cells[:, cells.any(axis=(0, 2))]  # [shards, bins, D], without empty bins
        self._starts = offsets_of(sizes)
        self.blocks = RecordBatchIndex(shard_files)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def is_binned(self) -> bool:
        return bool(self._cells.shape[1] > 1)

    @property
    def drawings(self) -> int:
        """Number of drawings, D, which training reads one after the other."""
        return int(self._cells.shape[2])

    @property
    def bins(self) -> LengthBins | None:
        """Rows of each length bin of each drawing; None if there are one bin and one drawing."""
        cells, sizes = self._cells, self._cells.ravel()
        if cells[:1].size < 2:
            return None
        # all runs of a drawing before those of the next, and of a bin before those of the next
        order = np.arange(cells.size).reshape(cells.shape).transpose(2, 1, 0).ravel()
        return LengthBins(
            counts=cells.sum(axis=0).T.ravel(),
            run_starts=offsets_of(sizes[order])[:-1],
            rows=offsets_of(sizes)[:-1][order],
        )

    @property
    def window(self) -> int | None:
        """Rows to draw from before others; None if the shards are not compressed.

        Record batches of compressed shards are decompressed whole, so only a few should be in use.
        """
        layouts = [shard.layout for shard in self.blocks.files]
        packed = [layout for layout in layouts if layout is not None and layout.compression]
        if not packed:
            return None
        bins = int(self._cells.shape[1])
        return max(1, WINDOW_BATCHES // max(1, bins)) * packed[0].batch_rows

    def first(self, number: int) -> I64:
        """Return the numbers of the first rows, at most `number`; int64."""
        return np.arange(min(number, len(self)))

    def most_predictions(self) -> int:
        """Return the maximum number of predictions of a row in any mask copy.

        Reads every stored offset.
        """
        if self._fresh is not None:
            return self._fresh.most(0 if self.info is None else self.info.length)
        return self.blocks.most_predictions()

    def take(self, rows: I64, copies: I64) -> MaskedRows:
        """Return the rows with the given mask copies.

        Args:
            rows: int64 [B], row numbers.
            copies: int64 [B], mask copies; below `info.copies` unless masks are drawn dynamically.

        Raises:
            DataError: a row has impossible values; the message names its file.
        """
        if not len(rows) or self.info is None:
            return MaskedRows.none()
        batches = np.searchsorted(self._starts, rows, side="right") - 1
        local = rows - self._starts[batches]
        masked_rows = read_rows(
            self.blocks, self.info, batches, local, copies if self._fresh is None else None
        )
        return masked_rows if self._fresh is None else self._fresh(masked_rows, copies)


def verify(path: str) -> int:
    """Compare the shards of a dataset with its manifest; hashes are cached by size and time.

    Returns:
        Number of shards compared; 0 for a directory without a manifest.

    Raises:
        DataError: a shard is missing, truncated or has another hash; the message names it.
    """
    if not artifact.is_artifact(path) or not storage.is_local(path):
        return 0
    shards = [
        entry for entry in artifact.read_manifest(path).files if entry.path.endswith(".arrow")
    ]
    compare_hashes = sum(entry.size for entry in shards) <= VERIFY_BYTES
    for entry in shards:
        file = storage.join(path, entry.path)
        size = int(storage.stat(file)["size"])
        if size != entry.size:
            raise DataError(
                f"{file} has {size} bytes, the manifest says {entry.size}; make {path} again"
            )
        if compare_hashes and fingerprints.file_hashes([file])[file] != entry.sha256:
            raise DataError(
                f"{file} does not have the sha256 that the manifest says; make {path} again"
            )
    return len(shards)
