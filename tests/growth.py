"""Whether work grows with the size of what it is given, or with its square: told by a ratio, which
is the same on a slow machine, and beside other programs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

STEP = 8  # times the size: linear work takes 8 times the CPU time, and with the square 64 times
MOST = 24
NOISE = 0.1  # CPU seconds that a collection of garbage takes


def is_linear(work: Callable[[int], object], size: int) -> bool:
    """Whether `work(size)` takes about `STEP` times as long as `work(size // STEP)`."""
    small = min(_spent(work, size // STEP) for _ in range(2))
    return _spent(work, size) < MOST * small + NOISE


def _spent(work: Callable[[int], object], size: int) -> float:
    begun = time.process_time()
    work(size)
    return time.process_time() - begun
