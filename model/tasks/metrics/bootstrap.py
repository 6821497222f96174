"""Percentile bootstrap intervals (Efron 1979) of any figure of a set of examples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pipeline.core import random_keys

Ints = npt.NDArray[np.int64]
LEVEL = 0.95


def interval(
    figure: Callable[[Ints], float], examples: int, seed: int, resamples: int = 1000, level: float = LEVEL
) -> tuple[float, float]:
    """The interval of a figure over resampled examples: an example's answer and its prediction stay together.

    A resample is drawn from its number and the seed, so the interval is the same wherever it is computed.

    Args:
        figure: of the examples of these numbers, int64 [n], some more than once.
        examples: how many there are; (0, 0) without any.
    """
    if not examples:
        return 0.0, 0.0
    places = np.arange(examples)
    drawn = (random_keys.below(random_keys.derive(seed, draw, places), examples) for draw in range(resamples))
    found = [figure(chosen.astype(np.int64)) for chosen in drawn]
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(found, [tail, 1.0 - tail])
    return float(low), float(high)
