"""Percentile bootstrap intervals (Efron 1979) of any metric of a set of examples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from cloze.core import random_keys

Ints = npt.NDArray[np.int64]
LEVEL = 0.95


def interval(
    figure: Callable[[Ints], float],
    examples: int,
    seed: int,
    resamples: int = 1000,
    level: float = LEVEL,
) -> tuple[float, float]:
    """Return the interval of a metric over resampled examples.

    A resample depends only on its number and the seed, so the interval is reproducible everywhere.

    Args:
        figure: metric of the examples with these numbers, int64 [n], with repeats.
        examples: number of examples; 0 gives (0, 0).
    """
    if not examples:
        return 0.0, 0.0
    places = np.arange(examples)
    drawn = (
        random_keys.randint_below(random_keys.fold_in(seed, draw, places), examples)
        for draw in range(resamples)
    )
    found = [figure(chosen.astype(np.int64)) for chosen in drawn]
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(found, [tail, 1.0 - tail])
    return float(low), float(high)
