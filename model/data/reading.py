"""Rows out of record batches: one numpy call a column and a file, checked, and no Python object a row or a token.

An index is never beyond the array it reads: offsets are compared with the sizes of the buffers that they point into, and numpy
refuses what lies outside of the file. So a damaged shard is named, and nothing is read that is not its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from model.data import files
from model.data.blocks import Blocks
from model.data.rows import MaskedRows
from pipeline.core.errors import DataError
from pipeline.core.ragged import I64, offsets_of, ranges
from pipeline.dataset.schema import NO_PAIR, DatasetInfo


def read_rows(blocks: Blocks, info: DatasetInfo, batches: I64, local: I64, copies: I64 | None) -> MaskedRows:
    """Rows `local` of the record batches `batches`, int64 [B] each, in that order.

    Args:
        blocks: what they are read from.
        info: what the shards say of themselves.
        copies: int64 [B], mask copies; None: no masks.

    Raises:
        DataError: what a row says cannot be; the message names its file.
    """
    blocks.find(batches)
    group = blocks.group[batches]
    if (group == group[0]).all():
        return _Reading(blocks, info, batches, local).rows(copies)
    order = np.argsort(group, kind="stable")  # rows of the same arrays side by side
    copies = None if copies is None else copies[order]
    return _Reading(blocks, info, batches[order], local[order]).rows(copies).ordered(np.argsort(order, kind="stable"))


class _Reading:
    """One call of `read_rows`; record batches of the same arrays stand side by side."""

    def __init__(self, blocks: Blocks, info: DatasetInfo, batches: I64, local: I64) -> None:
        self.blocks, self.info, self.batches, self.local = blocks, info, batches, local
        self._begins, self._sizes = blocks.begins[batches].T, blocks.sizes[batches].T
        self._borders = np.append(np.flatnonzero(np.diff(blocks.group[batches], prepend=-1)), len(batches))
        self._arrays = [blocks[int(batches[border])].arrays for border in self._borders[:-1]]

    def _gather(self, buffer: int, index: I64, borders: I64) -> npt.NDArray[Any]:
        """The values at `index`, of which those up to the next border are all in the same array."""
        if len(self._arrays) == 1:
            found: npt.NDArray[Any] = self._arrays[0][buffer][index]
            return found
        ends = borders.tolist()
        parts = zip(self._arrays, ends[:-1], ends[1:], strict=True)
        return np.concatenate([arrays[buffer][index[begin:end]] for arrays, begin, end in parts])

    def _at(self, buffer: int, index: I64) -> npt.NDArray[Any]:
        """One value a row, at `index` of its buffer."""
        return self._gather(buffer, self._begins[buffer] + index, self._borders)

    def _lists(self, offsets: int, values: int, index: I64) -> tuple[npt.NDArray[Any], I64]:
        """The lists at `index` end to end, and how long each is."""
        self._require((index < 0) | (index + 1 >= self._sizes[offsets]), "a list that is not there")
        start, stop = self._at(offsets, index).astype(np.int64), self._at(offsets, index + 1).astype(np.int64)
        self._require((start < 0) | (stop < start) | (stop > self._sizes[values]), "an offset outside of it")
        lengths = stop - start
        places = ranges(self._begins[values] + start, lengths)
        return self._gather(values, places, offsets_of(lengths)[self._borders]), lengths

    def rows(self, copies: I64 | None) -> MaskedRows:
        """The rows, under the stored masks number `copies`, or under none."""
        local = self.local
        ids, lengths = self._lists(files.ID_OFFSETS, files.IDS, local)
        positions, replacements, counts = ids[:0], ids[:0], np.zeros(len(local), np.int64)
        if copies is not None:
            first = self._at(files.MASK_OFFSETS, local).astype(np.int64)
            self._require(
                (copies < 0) | (first + copies >= self._at(files.MASK_OFFSETS, local + 1)), "a row that lacks a mask copy"
            )
            positions, counts = self._lists(files.POSITION_OFFSETS, files.POSITIONS, first + copies)
            replacements, replaced = self._lists(files.REPLACEMENT_OFFSETS, files.REPLACEMENTS, first + copies)
            self._require(replaced != counts, "a mask whose lists differ in length")
        found = MaskedRows(
            ids=ids,
            lengths=lengths,
            segment_start=self._at(files.SEGMENT_START, local).astype(np.int64),
            pair_labels=self._pair_labels(),
            positions=positions,
            replacements=replacements,
            counts=counts,
            documents=self._at(files.DOCUMENTS, local),
            sentences=self._at(files.SENTENCES, local).astype(np.int64),
            boundaries=ids[:0],
        )
        self._check(found)
        if self.info.packed:
            boundaries, sequences = self._lists(files.BOUNDARY_OFFSETS, files.BOUNDARIES, local)
            self._check_boundaries(boundaries.astype(np.int64), sequences, lengths)
            found = replace(found, boundaries=boundaries, boundary_counts=sequences)
        return found

    def _pair_labels(self) -> I64:
        labels = self._at(files.LABELS, self.local).astype(np.int64)
        known = self._sizes[files.VALID] > 0
        if known.any():
            places = np.where(known, self._begins[files.VALID] + (self.local >> 3), 0)
            bits = self._gather(files.VALID, places, self._borders) >> (self.local & 7).astype(np.uint8) & 1
            labels[known & (bits == 0)] = NO_PAIR
        return labels

    def _require(self, wrong: npt.NDArray[np.bool_], what: str) -> None:
        """Refuse what is wrong, bool [B], by the file of the first such row."""
        if wrong.any():
            file = self.blocks.files[int(self.blocks.file_of[self.batches[int(wrong.argmax())]])].file
            raise DataError(f"{file} is damaged (it has {what}); make the dataset again")

    def _check(self, found: MaskedRows) -> None:
        """Refuse rows that say what cannot be."""
        info = self.info
        self._require((found.lengths < 1) | (found.lengths > info.length), "a row whose length cannot be")
        beyond = f"ids beyond the vocabulary of {info.vocab_size}"
        for values, counts in ((found.ids, found.lengths), (found.replacements, found.counts)):
            if int(values.max(initial=0)) >= info.vocab_size:
                self._require(_any(values >= info.vocab_size, counts), beyond)
        outside = found.positions >= np.repeat(found.lengths, found.counts)
        if outside.any():
            self._require(_any(outside, found.counts), "a mask outside of its row")

    def _check_boundaries(self, begins: I64, sequences: I64, lengths: I64) -> None:
        self._require(sequences < 1, "a packed row without sequences")
        right = np.diff(begins, prepend=-1) > 0
        opens = offsets_of(sequences)[:-1]
        right[opens] = begins[opens] == 0
        right &= begins < np.repeat(lengths, sequences)
        self._require(_any(~right, sequences), "boundaries that cannot be")


def _any(values: npt.NDArray[np.bool_], counts: I64) -> npt.NDArray[np.bool_]:
    """For each list, whether one of its values is true: bool [B]."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return np.bincount(owner[values], minlength=len(counts)) > 0
