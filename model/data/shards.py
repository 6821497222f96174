"""Dataset shards as one table of rows, by memory map: what the sampler draws from and the collator reads.

Enter: a dataset artifact (or a directory of its shards) and a split. Leave: the rows asked for, as flat numpy arrays.
Nothing is read before it is asked for, so opening takes milliseconds and memory stays flat in the size of the dataset.
Every number that a later stage would index with is checked here, so a damaged shard is named instead of crashing a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline import artifact, hashing, storage
from pipeline.errors import DataError
from pipeline.schema import NO_PAIR, TRAIN, DatasetInfo

I64 = npt.NDArray[np.int64]
VERIFY_BYTES = 32 << 30  # datasets up to this size are hashed before the first use; larger ones by `cloze verify`


@dataclass(frozen=True, slots=True)
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
    """

    ids: npt.NDArray[Any]
    lengths: I64
    segment_start: I64
    pair_labels: I64
    positions: npt.NDArray[Any]
    replacements: npt.NDArray[Any]
    counts: I64


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The flat buffers of one record batch. All of them are views of the memory map."""

    file: str
    rows: int
    id_offsets: npt.NDArray[np.int32]
    ids: npt.NDArray[Any]
    segment_start: npt.NDArray[np.int32]
    pair_labels: npt.NDArray[np.int8]
    mask_offsets: npt.NDArray[np.int32]  # row -> its first mask copy
    position_offsets: npt.NDArray[np.int32]  # mask copy -> its first position
    positions: npt.NDArray[Any]
    replacement_offsets: npt.NDArray[np.int32]
    replacements: npt.NDArray[Any]


class Shards:
    """The rows of one split, numbered over all its shards in the order of their names.

    Args:
        path: a dataset artifact, or a directory that holds shards.
        split: `train` or `heldout`.
        info: what the other split said, which this one must say too.

    Raises:
        DataError: a shard is damaged, is no dataset shard, or was made with other settings than its neighbours.
    """

    def __init__(self, path: str, split: str = TRAIN, info: DatasetInfo | None = None) -> None:
        names = [name for name in storage.list_files(path) if name.startswith(f"{split}-") and name.endswith(".arrow")]
        self.path, self.split = path, split
        self.files = tuple(storage.join(path, name) for name in names)
        self.info = info
        self._chunks: list[_Chunk] = []
        for file in self.files:
            self._open(file)
        self._starts = np.cumsum([0, *(chunk.rows for chunk in self._chunks)], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _open(self, file: str) -> None:
        try:
            if storage.is_local(file):
                reader = pa.ipc.open_file(pa.memory_map(storage.filesystem(file)[1]))
            else:
                with storage.open_input(file) as handle:
                    reader = pa.ipc.open_file(pa.BufferReader(handle.read()))
            info = DatasetInfo.from_schema(reader.schema, file)
            if self.info is not None and info != self.info:
                raise DataError(f"{file} was made with other settings than its neighbours; make {self.path} again")
            self.info = info
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                batch.validate()
                if batch.num_rows:
                    self._chunks.append(_chunk(file, batch))
        except DataError:
            raise
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{file} is damaged or no dataset shard ({error}); make {self.path} again") from error

    def most_predictions(self) -> int:
        """The most predicted positions that a row has in any copy. Reads every offset once."""
        return max((int(np.diff(chunk.position_offsets).max(initial=0)) for chunk in self._chunks), default=0)

    def take(self, rows: I64, copies: I64) -> Rows:
        """The rows, each with the mask copy asked for.

        Args:
            rows: int64 [B], row numbers.
            copies: int64 [B], mask copies below `info.copies`.

        Raises:
            DataError: what a row says cannot be; the message names its file.
        """
        chunks = np.searchsorted(self._starts, rows, side="right") - 1
        local = rows - self._starts[chunks]
        ids, positions, replacements = [], [], []
        segment_start, pair_labels = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        for at, (number, row, copy) in enumerate(zip(chunks.tolist(), local.tolist(), copies.tolist(), strict=True)):
            chunk = self._chunks[number]
            ids.append(_part(chunk, chunk.id_offsets, chunk.ids, row))
            mask = int(chunk.mask_offsets[row]) + copy
            if not 0 <= mask < min(int(chunk.mask_offsets[row + 1]), len(chunk.position_offsets) - 1):
                raise DataError(f"{chunk.file} is damaged (row {row} lacks mask copy {copy}); make {self.path} again")
            positions.append(_part(chunk, chunk.position_offsets, chunk.positions, mask))
            replacements.append(_part(chunk, chunk.replacement_offsets, chunk.replacements, mask))
            segment_start[at], pair_labels[at] = chunk.segment_start[row], chunk.pair_labels[row]
        found = Rows(
            ids=_joined(ids),
            lengths=np.fromiter(map(len, ids), np.int64, len(ids)),
            segment_start=segment_start,
            pair_labels=pair_labels,
            positions=_joined(positions),
            replacements=_joined(replacements),
            counts=np.fromiter(map(len, positions), np.int64, len(ids)),
        )
        fault = self._fault(found, np.fromiter(map(len, replacements), np.int64, len(ids)))
        if fault is not None:
            row, sentence = fault
            raise DataError(f"{self._chunks[chunks[row]].file} is damaged ({sentence}); make {self.path} again")
        return found

    def _fault(self, found: Rows, replaced: I64) -> tuple[int, str] | None:
        """The first row (its place in the batch) that says what cannot be, and what it says."""
        if self.info is None or not len(found.lengths):
            return None
        vocabulary = self.info.vocab_size
        wrong = (found.lengths < 1) | (found.lengths > self.info.length) | (replaced != found.counts)
        if wrong.any():
            return int(wrong.argmax()), "a row's length cannot be"
        if int(found.ids.max()) >= vocabulary or int(found.replacements.max(initial=0)) >= vocabulary:
            rows = np.repeat(np.arange(len(found.lengths)), found.lengths)
            beyond = found.ids >= vocabulary
            return int(rows[beyond.argmax()]) if beyond.any() else 0, f"it holds ids beyond the vocabulary of {vocabulary}"
        if (found.positions >= np.repeat(found.lengths, found.counts)).any():
            rows = np.repeat(np.arange(len(found.lengths)), found.counts)
            return int(
                rows[(found.positions >= np.repeat(found.lengths, found.counts)).argmax()]
            ), "a mask lies outside its row"
        return None


def _chunk(file: str, batch: pa.RecordBatch) -> _Chunk:
    ids, masks = batch.column("input_ids"), batch.column("masks")
    entries = masks.values
    positions, replacements = entries.field("positions"), entries.field("input_ids")
    labels = batch.column("pair_label")
    return _Chunk(
        file=file,
        rows=batch.num_rows,
        id_offsets=ids.offsets.to_numpy(),
        ids=ids.values.to_numpy(),
        segment_start=batch.column("segment_start").to_numpy(),
        pair_labels=(labels.fill_null(NO_PAIR) if labels.null_count else labels).to_numpy(),
        mask_offsets=masks.offsets.to_numpy(),
        position_offsets=positions.offsets.to_numpy(),
        positions=positions.values.to_numpy(),
        replacement_offsets=replacements.offsets.to_numpy(),
        replacements=replacements.values.to_numpy(),
    )


def _part(chunk: _Chunk, offsets: npt.NDArray[np.int32], values: npt.NDArray[Any], at: int) -> npt.NDArray[Any]:
    start, stop = int(offsets[at]), int(offsets[at + 1])
    if not 0 <= start <= stop <= len(values):
        raise DataError(f"{chunk.file} is damaged (an offset points outside of it); make the dataset again")
    return values[start:stop]


def _joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


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
        if whole and hashing.file_hashes([file])[file] != entry.sha256:
            raise DataError(f"{file} does not have the sha256 that the manifest says; make {path} again")
    return len(shards)
