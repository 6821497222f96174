"""How the rows of a dataset shard lie in its record batches, so that a reader finds any row without looking at the others.

Rows of a shard stand in bins of length, the shortest first, and in each bin in the order of their hash; a record batch
holds rows of one bin alone and a fixed number of them, but for the bin's last. One bin is the plain case. The numbers lie
as JSON in the schema's metadata under `cloze.layout`, where other programs pass them by.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.core.errors import DataError

I64 = npt.NDArray[np.int64]
KEY = b"cloze.layout"
MOST_ROWS = 2048  # of a record batch
BATCH_TOKENS = 2048 * 128 * 10  # length · copies · rows of a record batch: what a writer draws masks for at once, and what
# a reader of compressed shards unpacks at once


def bin_borders(length: int, bins: int | Sequence[int]) -> tuple[int, ...]:
    """The most tokens that a row of each bin has, ascending; the last is `length`.

    Args:
        length: the most tokens of a row.
        bins: how many bins of equal width, or the borders themselves (`length` may be left out).
    """
    if isinstance(bins, int):
        return tuple(sorted({-(-length * number // bins) for number in range(1, bins + 1)}))
    return tuple(sorted({*bins, length}))


def batch_rows(length: int, copies: int) -> int:
    """Rows of a record batch: 2,048 at 128 tokens and ten copies, a smaller power of two for larger rows."""
    fits = max(1, BATCH_TOKENS // (length * copies))
    return int(min(MOST_ROWS, 1 << (fits.bit_length() - 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Of one shard.

    Attributes:
        borders: the most tokens of a row in each bin.
        rows: rows in each bin.
        batch_rows: rows of a record batch, the last of each bin excepted.
        compression: of the buffers: zstd, lz4 or None.
    """

    borders: tuple[int, ...]
    rows: tuple[int, ...]
    batch_rows: int
    compression: str | None = None

    def to_metadata(self) -> dict[bytes, bytes]:
        return {KEY: json.dumps(asdict(self), sort_keys=True).encode()}

    @classmethod
    def from_schema(cls, schema: pa.Schema, name: str) -> Layout | None:
        """Read it back; None where a shard was written without one, `DataError` where it is damaged."""
        content = (schema.metadata or {}).get(KEY)
        if content is None:
            return None
        try:
            values = json.loads(content)
            found = cls(
                borders=tuple(map(int, values["borders"])),
                rows=tuple(map(int, values["rows"])),
                batch_rows=int(values["batch_rows"]),
                compression=values.get("compression"),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{name} is damaged (its layout cannot be read); make the dataset again") from error
        if len(found.rows) != len(found.borders) or found.batch_rows < 1 or min(found.rows, default=0) < 0:
            raise DataError(f"{name} is damaged (its layout contradicts itself); make the dataset again")
        return found

    def batches(self) -> tuple[I64, I64]:
        """Rows of each record batch, and the bin that they are of: int64 [batches] twice."""
        counts = -(-np.asarray(self.rows, np.int64) // self.batch_rows)
        bins = np.repeat(np.arange(len(self.rows)), counts)
        sizes = np.full(len(bins), self.batch_rows, np.int64)
        last = np.cumsum(counts)[counts > 0] - 1
        sizes[last] = (np.asarray(self.rows, np.int64)[counts > 0] - 1) % self.batch_rows + 1
        return sizes, bins
