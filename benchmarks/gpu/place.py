"""Where rows run: the device, the size, and a scratch directory with the data that they share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.model.datasets import write_dataset

SPREAD, MEAN = (
    0.7,
    0.42,
)  # lengths of an encyclopedia's paragraphs, log-normal, beside the longest: half of a row in the mean
SHORTEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a row is told.

    Attributes:
        device: `cuda` or `cpu`.
        tiny: whether everything is as small as it can be, to see that it runs.
        scratch: a directory of this program's.
        seconds: what the row may measure for.
    """

    device: str
    tiny: bool
    scratch: Path
    seconds: float = 2.0

    def rows(self, length: int, vocabulary: int, rows: int, pairs: bool, packed: bool) -> str:
        """A dataset of rows of encyclopedia-like lengths, up to `length`, or of full rows that such
        sequences are packed into; made once.
        """
        path = self.scratch / f"rows-{length}-{vocabulary}-{rows}-{pairs}-{packed}"
        if not path.exists():
            making = path.with_suffix(".making")
            write_dataset(
                making, rows=rows, heldout=0, length=length, vocab_size=vocabulary, copies=1,
                pair_task="nsp" if pairs else None,
                lengths=lambda rng: ragged_length(rng, length), packed=packed,
            )  # fmt: skip
            making.rename(path)
        return str(path)

    def small(self, name: str, **values: Any) -> str:
        """A tiny dataset for the checks; made once."""
        path = self.scratch / name
        return str(path) if path.exists() else write_dataset(path, **values)


def ragged_length(rng: np.random.Generator, longest: int) -> int:
    """One row's length."""
    return int(
        min(longest, max(SHORTEST, math.exp(SPREAD * rng.standard_normal()) * MEAN * longest))
    )
