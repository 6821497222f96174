"""Dataset shards as one table of rows, by memory map: what the sampler draws from and the collator reads.

Enter: a dataset artifact (or a directory of its shards) and a split. Leave: the rows asked for, as flat numpy arrays.
Nothing is read before it is asked for, so opening takes milliseconds and memory stays flat in the size of the dataset.
Every number that a later stage would index with is checked here, so a damaged shard is named instead of crashing a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from model.data import files
from model.data.files import Buffers, ShardFile, memory
from model.data.sampler import Bins
from pipeline.core import artifact, fingerprints, storage
from pipeline.core.errors import DataError
from pipeline.core.ragged import I64, offsets_of, ranges
from pipeline.core.random_keys import U64
from pipeline.core.shards import TRAIN
from pipeline.dataset.schema import NO_PAIR, DatasetInfo

VERIFY_BYTES = 32 << 30  # datasets up to this size are hashed before the first use; larger ones by `cloze verify`
WINDOW_BATCHES = 32  # record batches of a compressed dataset that are drawn from at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """B rows with one mask copy each, ragged: the rows' values lie one behind the other.

    Attributes:
        ids: token ids of the unmasked sequences, [sum of lengths].
        lengths: int64 [B].
        segment_start: int64 [B], where segment B starts (the row's length if there is none).
        pair_labels: int64 [B], -100 where there is none.
        positions: predicted positions inside their rows, [sum of counts].
        replacements: the ids that stand there in the masked sequence, [sum of counts].
        counts: int64 [B], predicted positions a row.
        documents: uint64 [B], and sentences: int64 [B], the row's `source`: what its random numbers follow from.
        boundaries: of packed rows: where in their row sequences begin, [sum of boundary_counts].
        boundary_counts: int64 [B], sequences a row; None where rows are not packed.
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


class FreshMasks(Protocol):
    """Draws masks instead of reading the stored ones; see `model.data.dynamic`."""

    def __call__(self, rows: Rows, copies: I64) -> Rows: ...

    def most(self, length: int) -> int:
        """The most predictions of a row of at most `length` tokens."""


class Shards:
    """The rows of one split, numbered over all its shards in the order of their names.

    Args:
        path: a dataset artifact, or a directory that holds shards.
        split: `train` or `heldout`.
        info: what the other split said, which this one must say too.
        fresh: draws the masks; without it the stored ones are read.

    Raises:
        DataError: a shard is damaged, is no dataset shard, or was made with other settings than its neighbours.
    """

    def __init__(self, path: str, split: str = TRAIN, info: DatasetInfo | None = None, fresh: FreshMasks | None = None) -> None:
        names = [name for name in storage.list_files(path) if name.startswith(f"{split}-") and name.endswith(".arrow")]
        self.path, self.split = path, split
        self.files = tuple(storage.join(path, name) for name in names)
        self.info, self._fresh = info, fresh
        opened = [ShardFile(file, masks=fresh is None) for file in self.files]
        kinds = [(shard.info, shard.dtypes, (shard.layout and shard.layout.borders) or ()) for shard in opened]
        for shard, kind in zip(opened, kinds, strict=True):
            if kind != kinds[0] or (info is not None and shard.info != info):
                raise DataError(f"{shard.file} was made with other settings than its neighbours; make {self.path} again")
        self.info = opened[0].info if opened else info
        sizes = np.concatenate([np.zeros(0, np.int64), *(shard.rows for shard in opened)])
        self._bin_of = np.concatenate([np.zeros(0, np.int64), *(shard.bins for shard in opened)])
        self._starts = offsets_of(sizes)
        self._buffers = Buffers(opened)
        views = {dtype: memory(dtype) for dtype in set(opened[0].dtypes)} if opened else {}
        self._memory = [views[dtype] for dtype in opened[0].dtypes] if opened else []

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def bins(self) -> Bins | None:
        """Where the rows of each length bin are; None where the dataset has one bin."""
        if len(np.unique(self._bin_of)) < 2:
            return None
        order = np.argsort(self._bin_of, kind="stable")
        sizes = np.diff(self._starts)
        counts = np.bincount(self._bin_of, weights=sizes).astype(np.int64)
        return Bins(counts=counts[counts > 0], places=offsets_of(sizes[order])[:-1], rows=self._starts[:-1][order])

    @property
    def window(self) -> int | None:
        """Rows from which a run should draw before it goes on to others; None where any row is read as fast as any other.

        Record batches of compressed shards are unpacked whole, so rows of few of them should be asked for at a time.
        """
        layouts = [shard.layout for shard in self._buffers.files]
        packed = [layout for layout in layouts if layout is not None and layout.compression]
        if not packed:
            return None
        bins = self.bins
        return max(1, WINDOW_BATCHES // (1 if bins is None else len(bins.counts))) * packed[0].batch_rows

    def most_predictions(self) -> int:
        """The most predicted positions that a row has in any copy. Reads every offset once, where masks are stored."""
        if self._fresh is not None:
            return self._fresh.most(0 if self.info is None else self.info.length)
        return self._buffers.most_predictions(self._memory)

    def take(self, rows: I64, copies: I64) -> Rows:
        """The rows, each with the mask copy asked for.

        Args:
            rows: int64 [B], row numbers.
            copies: int64 [B], mask copies, below `info.copies` unless fresh masks are drawn.

        Raises:
            DataError: what a row says cannot be; the message names its file.
        """
        batches = np.searchsorted(self._starts, rows, side="right") - 1
        self._buffers.find(batches)
        found = _Reading(self, batches, rows - self._starts[batches]).rows(copies, self._fresh is None)
        return found if self._fresh is None else self._fresh(found, copies)

    def refuse(self, batches: I64, wrong: npt.NDArray[np.bool_], what: str) -> None:
        """Raises `DataError` with the file of the first record batch whose row is wrong, if one is."""
        if wrong.any():
            file = self._buffers.files[int(self._buffers.file_of[batches[int(wrong.argmax())]])].file
            raise DataError(f"{file} is damaged (it has {what}); make {self.path} again")


class _Reading:
    """One call of `take`: rows at places `local` of the record batches `batches`, which are found."""

    def __init__(self, shards: Shards, batches: I64, local: I64) -> None:
        self.shards, self.batches, self.local = shards, batches, local
        self._memory = shards._memory
        self._begins, self._sizes = shards._buffers.begins[batches].T, shards._buffers.sizes[batches].T

    def _at(self, buffer: int, index: I64) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = self._memory[buffer][self._begins[buffer] + index]
        return found

    def _lists(self, offsets: int, values: int, index: I64) -> tuple[npt.NDArray[Any], I64]:
        """The lists at `index` end to end, and how long each is."""
        self._require((index < 0) | (index + 1 >= self._sizes[offsets]), "a list that is not there")
        start, stop = self._at(offsets, index).astype(np.int64), self._at(offsets, index + 1).astype(np.int64)
        self._require((start < 0) | (stop < start) | (stop > self._sizes[values]), "an offset outside of it")
        lengths = stop - start
        found: npt.NDArray[Any] = self._memory[values][ranges(self._begins[values] + start, lengths)]
        return found, lengths

    def rows(self, copies: I64, stored: bool) -> Rows:
        """The rows, under the stored masks number `copies`, or under none."""
        local, info = self.local, self.shards.info
        if not len(local) or info is None:
            nothing = np.zeros(0, np.int64)
            return Rows(
                **dict.fromkeys(("ids", "lengths", "segment_start", "pair_labels", "positions", "replacements"), nothing),
                **dict.fromkeys(("counts", "sentences", "boundaries"), nothing),
                documents=nothing.astype(np.uint64),
            )
        ids, lengths = self._lists(files.ID_OFFSETS, files.IDS, local)
        positions, replacements, counts = ids[:0], ids[:0], np.zeros(len(local), np.int64)
        if stored:
            first = self._at(files.MASK_OFFSETS, local).astype(np.int64)
            self._require(
                (copies < 0) | (first + copies >= self._at(files.MASK_OFFSETS, local + 1)), "a row that lacks a mask copy"
            )
            positions, counts = self._lists(files.POSITION_OFFSETS, files.POSITIONS, first + copies)
            replacements, replaced = self._lists(files.REPLACEMENT_OFFSETS, files.REPLACEMENTS, first + copies)
            self._require(replaced != counts, "a mask whose lists differ in length")
        found = Rows(
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
        self._check(found, info)
        if info.packed:
            boundaries, sequences = self._lists(files.BOUNDARY_OFFSETS, files.BOUNDARIES, local)
            self._check_boundaries(boundaries.astype(np.int64), sequences, lengths)
            found = replace(found, boundaries=boundaries, boundary_counts=sequences)
        return found

    def _pair_labels(self) -> I64:
        labels = self._at(files.LABELS, self.local).astype(np.int64)
        known = self._begins[files.VALID] > 0
        if known.any():
            bytes_at = np.where(known, self._begins[files.VALID] + (self.local >> 3), self._begins[files.LABELS])
            bits = self._memory[files.VALID][bytes_at] >> (self.local & 7).astype(np.uint8) & 1
            labels[known & (bits == 0)] = NO_PAIR
        return labels

    def _require(self, wrong: npt.NDArray[np.bool_], what: str) -> None:
        if wrong.any():
            self.shards.refuse(self.batches, wrong, what)

    def _check(self, found: Rows, info: DatasetInfo) -> None:
        """Refuse rows that say what cannot be."""
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


def with_masks(rows: Rows, positions: npt.NDArray[Any], replacements: npt.NDArray[Any], counts: I64) -> Rows:
    """The same rows under other masks."""
    return replace(rows, positions=positions, replacements=replacements, counts=counts)


def verify(path: str) -> int:
    """Compare the shards of a dataset artifact with its manifest, once: the hashes are remembered by size and time.

    Returns:
        How many shards were compared; 0 for a directory without a manifest.

    Raises:
        DataError: a shard is missing, cut, or has another hash; the message names it.
    """
    if not artifact.is_artifact(path) or not storage.is_local(path):
        return 0
    shards = [entry for entry in artifact.read_manifest(path).files if entry.path.endswith(".arrow")]
    whole = sum(entry.size for entry in shards) <= VERIFY_BYTES
    for entry in shards:
        file = storage.join(path, entry.path)
        size = int(storage.stat(file)["size"])
        if size != entry.size:
            raise DataError(f"{file} has {size} bytes, the manifest says {entry.size}; make {path} again")
        if whole and fingerprints.file_hashes([file])[file] != entry.sha256:
            raise DataError(f"{file} does not have the sha256 that the manifest says; make {path} again")
    return len(shards)
