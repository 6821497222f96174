"""Metrics of classification: pure functions of labels and predictions (integer arrays [n]), as the papers name them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pipeline.core import random_keys

Ints = npt.NDArray[np.int64]
Metric = Callable[[Ints, Ints], float]


def accuracy(labels: Ints, predictions: Ints) -> float:
    """The share of examples that are right."""
    return float(np.mean(labels == predictions)) if len(labels) else 0.0


def confusion_matrix(labels: Ints, predictions: Ints, classes: int) -> Ints:
    """Counts [classes, classes]: rows are the true labels, columns the predicted ones."""
    cells = np.bincount(labels * classes + predictions, minlength=classes * classes)
    return cells.reshape(classes, classes).astype(np.int64)


def _f1_by_class(labels: Ints, predictions: Ints) -> npt.NDArray[np.float64]:
    """F1 of each class that occurs among labels or predictions; 0 where nothing of it was found."""
    classes = int(max(labels.max(), predictions.max())) + 1 if len(labels) else 0
    matrix = confusion_matrix(labels, predictions, classes)
    occurring = matrix.sum(0) + matrix.sum(1)
    hits = np.diagonal(matrix)
    scores: npt.NDArray[np.float64] = 2.0 * hits[occurring > 0] / occurring[occurring > 0]
    return scores


def f1(labels: Ints, predictions: Ints) -> float:
    """F1 of the class 1, as GLUE scores MRPC and QQP; 0 if it neither occurs nor is predicted."""
    wanted, found = labels == 1, predictions == 1
    total = int(wanted.sum() + found.sum())
    return 2.0 * float((wanted & found).sum()) / total if total else 0.0


def macro_f1(labels: Ints, predictions: Ints) -> float:
    """The mean of F1 over the classes that occur among labels or predictions."""
    return float(np.mean(_f1_by_class(labels, predictions))) if len(labels) else 0.0


def matthews(labels: Ints, predictions: Ints) -> float:
    """Matthews' correlation for any number of classes (Gorodkin 2004), as GLUE scores CoLA; 0 where it is undefined."""
    if not len(labels):
        return 0.0
    matrix = confusion_matrix(labels, predictions, int(max(labels.max(), predictions.max())) + 1).astype(np.float64)
    true, found, total = matrix.sum(1), matrix.sum(0), matrix.sum()
    covariance = np.trace(matrix) * total - true @ found
    scale = (total**2 - found @ found) * (total**2 - true @ true)
    return float(covariance / np.sqrt(scale)) if scale > 0 else 0.0


METRICS: dict[str, Metric] = {"accuracy": accuracy, "f1": f1, "macro_f1": macro_f1, "matthews": matthews}


def score(names: tuple[str, ...], labels: Ints, predictions: Ints) -> dict[str, float]:
    """The metrics of those names."""
    return {name: METRICS[name](labels, predictions) for name in names}


def bootstrap_interval(
    correct: npt.NDArray[np.bool_], seed: int, resamples: int = 1000, level: float = 0.95
) -> tuple[float, float]:
    """The percentile bootstrap interval of an accuracy (Efron 1979), from whether each example [n] is right.

    A resample is drawn from its number and the seed, so the interval is the same wherever it is computed.
    """
    n = len(correct)
    if not n:
        return 0.0, 0.0
    places = np.arange(n)
    values = correct.astype(np.float64)
    means = [values[random_keys.below(random_keys.derive(seed, draw, places), n)].mean() for draw in range(resamples)]
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return float(low), float(high)
