"""Ragged arrays: rows of unequal lengths, concatenated in one flat array.

The path from sentences to masks uses these arrays, so that no Python loop runs over tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]


def offsets_of(lengths: npt.NDArray[Any]) -> I64:
    """Return where each row starts, and the total at the end: lengths [n] -> int64 [n + 1]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def ranges(starts: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> I64:
    """Concatenate `arange(start, start + length)` of all pairs: int64 [sum of lengths]."""
    lengths = np.asarray(lengths, np.int64)
    offsets = offsets_of(lengths)
    # Within a row the result is the flat index plus one constant, which is repeated.
    return np.repeat(np.asarray(starts, np.int64) - offsets[:-1], lengths) + np.arange(offsets[-1])


@dataclass(frozen=True, slots=True)
class Ragged:
    """A list of numbers for each of R rows."""

    values: npt.NDArray[Any]  # [T], the concatenated lists
    offsets: I64  # int64 [R + 1], start of each list in `values`, and T

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> I64:
        """Numbers in each list: int64 [R]."""
        return np.diff(self.offsets)

    def take(self, index: npt.NDArray[Any]) -> Ragged:
        """Return the lists at the positions `index`, in the order of `index`."""
        lengths = self.lengths[index]
        return Ragged(self.values[ranges(self.offsets[:-1][index], lengths)], offsets_of(lengths))

    @classmethod
    def concatenate(cls, parts: Sequence[Ragged]) -> Ragged:
        """Return the lists of one or more parts, concatenated."""
        lengths = np.concatenate([ragged.lengths for ragged in parts])
        return cls(np.concatenate([ragged.values for ragged in parts]), offsets_of(lengths))
