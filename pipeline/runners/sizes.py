"""Sizes of the units of an exchange (`exchange.py`).

Runs have sqrt(bytes * RANGE_BYTES) bytes: 8 MB for 1 GB of text, 627 MB for 6 TB. A destination has
as many. So both steps have equally many units, and a range has `RANGE_BYTES` on average.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

RANGE_BYTES = 64 << 10  # a store charges for each request
LEAST_BYTES = 4 << 20  # of a run, which costs a few files


def run_bytes(total: int, least: int = LEAST_BYTES) -> int:
    """Return the bytes of a run, at least `least`, if all runs have `total` bytes."""
    return max(least, math.isqrt(total * RANGE_BYTES))


def destination_count(total: int, runs: int) -> int:
    """Return the number of destinations with which a range has `RANGE_BYTES` on average."""
    return max(1, total // (RANGE_BYTES * runs))


def group_by_size(sizes: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Return (first, end) of consecutive sizes whose sum is at most `most`, or of a single one."""
    edges, filled = [0], 0
    for number, size in enumerate(sizes):
        if number > edges[-1] and filled + size > most:
            edges.append(number)
            filled = 0
        filled += size
    return list(itertools.pairwise([*edges, len(sizes)])) if sizes else []
