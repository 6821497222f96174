"""Metrics of regression, as GLUE scores STS-B: scipy's correlations, with what they leave undefined as 0; and bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import stats

from model.tasks.metrics.bootstrap import Ints, interval

Floats = npt.NDArray[np.float64]
Metric = Callable[[Floats, Floats], float]  # of scores and predictions, float64 [n]
ROUNDING = 1e-12  # a spread that is this share of the values is one of rounding


def pearson(scores: Floats, predictions: Floats) -> float:
    """Pearson's correlation; 0 where scores or predictions are all the same."""
    if _constant(scores) or _constant(predictions):
        return 0.0
    return float(stats.pearsonr(scores, predictions).statistic)


def spearman(scores: Floats, predictions: Floats) -> float:
    """Spearman's rank correlation, ties at their mean rank; 0 where scores or predictions are all the same."""
    if _constant(scores) or _constant(predictions):
        return 0.0
    return float(stats.spearmanr(scores, predictions).statistic)


METRICS: dict[str, Metric] = {"pearson": pearson, "spearman": spearman}


def score(names: tuple[str, ...], scores: Floats, predictions: Floats) -> dict[str, float]:
    """The metrics of those names; 0 where there are fewer than two examples."""
    return {name: METRICS[name](scores, predictions) for name in names}


def intervals(
    names: tuple[str, ...], scores: Floats, predictions: Floats, seed: int, resamples: int = 1000
) -> dict[str, tuple[float, float]]:
    """The bootstrap interval of each of these metrics, see `model.tasks.metrics.bootstrap`."""

    def figure(metric: Metric) -> Callable[[Ints], float]:
        return lambda chosen: metric(scores[chosen], predictions[chosen])

    return {name: interval(figure(METRICS[name]), len(scores), seed, resamples) for name in names}


def _constant(values: Floats) -> bool:
    return len(values) < 2 or float(np.ptp(values)) <= ROUNDING * float(np.abs(values).max())
