"""Dataset shards as one memory-mapped table of rows, from which samplers draw."""

from __future__ import annotations

import numpy as np

from cloze.core import storage
from cloze.core.artifacts import artifact, fingerprints
from cloze.core.artifacts.artifact import TRAIN
from cloze.core.errors import DataError
from cloze.core.ragged import I64, offsets_of
from cloze.model.data.masks import DynamicMasker
from cloze.model.data.rows import MaskedRows, RecordBatchIndex, RowReader
from cloze.model.data.sampler import LengthBins
from cloze.model.data.shard_file import ShardFile
from cloze.pipeline.dataset.schema import DatasetInfo

# Bytes; up to this size datasets are hashed before first use, larger ones by `cloze verify`.
VERIFY_BYTES = 32 << 30
WINDOW_BATCHES = 32  # record batches of a compressed dataset that are drawn from at a time


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
        fresh: DynamicMasker | None = None,
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
        # [shards, bins, D], with one bin and drawing where there is no shard at all.
        cells = np.array([shard.cells for shard in shard_files] or np.zeros((0, 1, 1), np.int64))
        self._cells = cells[:, cells.any(axis=(0, 2))]  # [shards, bins, D], without empty bins
        self._starts = offsets_of(sizes)
        self.blocks = RecordBatchIndex(shard_files)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def is_binned(self) -> bool:
        """Whether the rows are in bins of similar length."""
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
        self.blocks.find(batches)
        # Rows of one array are read by one call, so they must be adjacent.
        group, order = self.blocks.group[batches], None
        if (group != group[0]).any():
            order = np.argsort(group, kind="stable")
            batches, local = batches[order], local[order]
        stored = None if self._fresh is not None else copies if order is None else copies[order]
        read = RowReader(self.blocks, self.info, batches, local).rows(stored)
        if order is not None:
            # Back to the order of `rows`, on which the batch's samples and copies depend.
            read = read.ordered(np.argsort(order, kind="stable"))
        return read if self._fresh is None else self._fresh(read, copies)


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
