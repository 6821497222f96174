"""Ragged arrays: rows of unequal lengths that lie end to end in one flat array.

The whole way from sentences to masks works on such arrays, so that no loop runs over tokens in Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]


def offsets_of(lengths: npt.NDArray[Any]) -> I64:
    """Where each row starts, and the total at the end: lengths [n] -> int64 [n + 1]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def ranges(starts: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> I64:
    """The concatenation of `arange(start, start + length)` for every pair: int64 [sum of lengths]."""
    lengths = np.asarray(lengths, np.int64)
    offsets = offsets_of(lengths)
    return np.repeat(np.asarray(starts, np.int64) - offsets[:-1], lengths) + np.arange(offsets[-1])
