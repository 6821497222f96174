"""Dataset shards as one table of rows, by memory map: what the sampler draws from and the collator reads.

Enter: a dataset artifact (or a directory of its shards) and a split. Leave: the rows asked for, as flat numpy arrays.
Nothing is read before it is asked for, so opening takes milliseconds and memory stays flat in the size of the dataset.
Every number that a later stage would index with is checked here, so a damaged shard is named instead of crashing a kernel.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from model.data.blocks import Blocks
from model.data.files import ShardFile
from model.data.reading import read_rows
from model.data.rows import MaskedRows
from model.data.sampler import Bins
from pipeline.core import artifact, fingerprints, storage
from pipeline.core.errors import DataError
from pipeline.core.ragged import I64, offsets_of
from pipeline.core.shards import TRAIN
from pipeline.dataset.schema import DatasetInfo

VERIFY_BYTES = 32 << 30  # datasets up to this size are hashed before the first use; larger ones by `cloze verify`
WINDOW_BATCHES = 32  # record batches of a compressed dataset that are drawn from at a time


class FreshMasks(Protocol):
    """Draws masks instead of reading the stored ones; see `model.data.dynamic`."""

    def __call__(self, rows: MaskedRows, copies: I64) -> MaskedRows: ...

    def most(self, length: int) -> int:
        """The most predictions of a row of at most `length` tokens."""


class Rows(Protocol):
    """The rows of one split, of one dataset or of several, as samplers number them."""

    @property
    def info(self) -> DatasetInfo | None:
        """What they say of themselves; None: there are none."""
        ...

    @property
    def bins(self) -> Bins | None:
        """Where the rows of each length bin are; None where there is one bin."""
        ...

    def __len__(self) -> int: ...

    def take(self, rows: I64, copies: I64) -> MaskedRows:
        """The rows with these numbers, each with the mask copy asked for; both int64 [B]."""
        ...

    def most_predictions(self) -> int:
        """The most predicted positions that a row has in any copy."""
        ...

    def first(self, number: int) -> I64:
        """The numbers of about so many rows that stand for all: a dataset's first ones (shards are sorted by a hash), and of several
        datasets those of each by its share. int64.
        """
        ...


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
        self.blocks = Blocks(opened)

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
        layouts = [shard.layout for shard in self.blocks.files]
        packed = [layout for layout in layouts if layout is not None and layout.compression]
        if not packed:
            return None
        bins = self.bins
        return max(1, WINDOW_BATCHES // (1 if bins is None else len(bins.counts))) * packed[0].batch_rows

    def tokens(self) -> int:
        """Tokens of all rows. Reads two offsets a record batch, and unpacks it where it is compressed."""
        return self.blocks.tokens()

    def first(self, number: int) -> I64:
        """The numbers of the first rows, at most so many; int64."""
        return np.arange(min(number, len(self)))

    def most_predictions(self) -> int:
        """The most predicted positions that a row has in any copy. Reads every offset once, where masks are stored."""
        if self._fresh is not None:
            return self._fresh.most(0 if self.info is None else self.info.length)
        return self.blocks.most_predictions()

    def take(self, rows: I64, copies: I64) -> MaskedRows:
        """The rows, each with the mask copy asked for.

        Args:
            rows: int64 [B], row numbers.
            copies: int64 [B], mask copies, below `info.copies` unless fresh masks are drawn.

        Raises:
            DataError: what a row says cannot be; the message names its file.
        """
        if not len(rows) or self.info is None:
            return MaskedRows.none()
        batches = np.searchsorted(self._starts, rows, side="right") - 1
        local = rows - self._starts[batches]
        found = read_rows(self.blocks, self.info, batches, local, copies if self._fresh is None else None)
        return found if self._fresh is None else self._fresh(found, copies)


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
