"""Metrics of classification, as the papers name them: scikit-learn's, with what it leaves undefined as 0; and bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from sklearn.metrics import confusion_matrix as counted

from pipeline.core import random_keys

Ints = npt.NDArray[np.int64]
Metric = Callable[[Ints, Ints], float]  # of labels and predictions, int64 [n], n at least 1


def accuracy(labels: Ints, predictions: Ints) -> float:
    """The share of examples that are right."""
    return float(accuracy_score(labels, predictions))


def f1(labels: Ints, predictions: Ints) -> float:
    """F1 of the class 1, as GLUE scores MRPC and QQP; 0 if it neither occurs nor is predicted."""
    return float(f1_score(labels == 1, predictions == 1, zero_division=0.0))


def macro_f1(labels: Ints, predictions: Ints) -> float:
    """The mean of F1 over the classes that occur among labels or predictions."""
    return float(f1_score(labels, predictions, average="macro", zero_division=0.0))


def matthews(labels: Ints, predictions: Ints) -> float:
    """Matthews' correlation for any number of classes (Gorodkin 2004), as GLUE scores CoLA; 0 where it is undefined."""
    if len(np.union1d(labels, predictions)) < 2:
        return 0.0
    return float(matthews_corrcoef(labels, predictions))


METRICS: dict[str, Metric] = {"accuracy": accuracy, "f1": f1, "macro_f1": macro_f1, "matthews": matthews}


def score(names: tuple[str, ...], labels: Ints, predictions: Ints) -> dict[str, float]:
    """The metrics of those names; 0 where there are no examples."""
    return {name: METRICS[name](labels, predictions) if len(labels) else 0.0 for name in names}


def confusion_matrix(labels: Ints, predictions: Ints, classes: int) -> Ints:
    """Counts [classes, classes]: rows are the true labels, columns the predicted ones."""
    if not len(labels):
        return np.zeros((classes, classes), dtype=np.int64)
    return np.asarray(counted(labels, predictions, labels=range(classes)), dtype=np.int64)


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
