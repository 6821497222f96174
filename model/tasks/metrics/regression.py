"""Regression metrics, as GLUE for STS-B: scipy's correlations, 0 where undefined, and intervals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import stats

from cloze.model.tasks.metrics.bootstrap import Ints, interval

Floats = npt.NDArray[np.float64]
Metric = Callable[[Floats, Floats], float]  # metric of scores and predictions, float64 [n]
ROUNDING = 1e-12  # relative spread below which values count as constant


def pearson(scores: Floats, predictions: Floats) -> float:
    """Return Pearson's correlation; 0 if scores or predictions are constant."""
    if _constant(scores) or _constant(predictions):
        return 0.0
    return float(stats.pearsonr(scores, predictions).statistic)


def spearman(scores: Floats, predictions: Floats) -> float:
    """Return Spearman's rank correlation, ties at mean rank; 0 for constant values."""
    if _constant(scores) or _constant(predictions):
        return 0.0
    return float(stats.spearmanr(scores, predictions).statistic)


METRICS: dict[str, Metric] = {"pearson": pearson, "spearman": spearman}


def score(names: tuple[str, ...], scores: Floats, predictions: Floats) -> dict[str, float]:
    """Return the named metrics; 0 for fewer than two examples."""
    return {name: METRICS[name](scores, predictions) for name in names}


def intervals(
    names: tuple[str, ...], scores: Floats, predictions: Floats, seed: int, resamples: int = 1000
) -> dict[str, tuple[float, float]]:
    """Return the bootstrap interval of each metric, see `cloze.model.tasks.metrics.bootstrap`."""

    def figure(metric: Metric) -> Callable[[Ints], float]:
        return lambda chosen: metric(scores[chosen], predictions[chosen])

    return {name: interval(figure(METRICS[name]), len(scores), seed, resamples) for name in names}


def _constant(values: Floats) -> bool:
    return len(values) < 2 or float(np.ptp(values)) <= ROUNDING * float(np.abs(values).max())
