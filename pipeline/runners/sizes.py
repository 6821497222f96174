"""Sizes of the units of an exchange (`exchange.py`).

Runs have sqrt(bytes * RANGE_BYTES) bytes: 8 MB for 1 GB of text, 627 MB for 6 TB. A destination has
as many. So both steps have equally many units, and a range has `RANGE_BYTES` on average.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from cloze.core import storage

RANGE_BYTES = 64 << 10  # a store charges for each request
LEAST_BYTES = 4 << 20  # of a run, which costs a few files
STORE_BYTES = 128 << 20  # of a unit, whose dozen requests are one for 8 MB then
# Counts above 2,000 are one of these: a cluster does 3,200 or 9,600 equal units in full rounds with
# 3,200 workers, and with a half, a third or a power of two of them. 10,000 had left a fifth idle.
EVEN_COUNTS = (2400, 3200, 4800, 6400, 9600)
ROUND = 3200


def run_bytes(total: int, least: int = LEAST_BYTES) -> int:
    """Return the bytes of a run, at least `least`, if all runs have `total` bytes."""
    return max(least, math.isqrt(total * RANGE_BYTES))


def least_bytes(directory: str, least: int = LEAST_BYTES) -> int:
    """Return the least bytes of a unit: more if the directory is in a store, `least` on a disk."""
    return least if storage.is_local(directory) else STORE_BYTES


def destination_count(total: int, runs: int) -> int:
    """Return the number of destinations with which a range has `RANGE_BYTES` on average."""
    return max(1, total // (RANGE_BYTES * runs))


def even_count(count: int) -> int:
    """Return `count`, or the next of `EVEN_COUNTS` if it is large, at most the largest."""
    fitting = (even for even in EVEN_COUNTS if count <= even)
    return count if count <= 2000 else next(fitting, EVEN_COUNTS[-1])


def places_per_unit(places: int, most: int) -> int:
    """Return how many consecutive places a unit has, so that there are at most `most` units.

    If the places are as many as `even_count` gives, all units have equally many, and the number of
    units is a multiple of `ROUND` if it is larger.
    """
    least = -(-places // max(1, min(most, places)))
    if places not in EVEN_COUNTS:
        return least
    divisors = (number for number in range(least, places + 1) if places % number == 0)
    return next(n for n in divisors if places // n < ROUND or places // n % ROUND == 0)


def group_by_size(sizes: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Return (first, end) of consecutive sizes whose sum is at most `most`, or of a single one."""
    edges, filled = [0], 0
    for number, size in enumerate(sizes):
        if number > edges[-1] and filled + size > most:
            edges.append(number)
            filled = 0
        filled += size
    return list(itertools.pairwise([*edges, len(sizes)])) if sizes else []
