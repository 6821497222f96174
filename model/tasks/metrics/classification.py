"""Metrics of classification, as the papers name them: scikit-learn's, with what it leaves undefined as 0; and bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from sklearn.metrics import confusion_matrix as counted

from model.tasks.metrics.bootstrap import interval

Ints = npt.NDArray[np.int64]


class Metric(Protocol):
    """A figure of labels and predictions, int64 [n], n at least 1; and of how often each of them counts, int64 [n]."""

    def __call__(self, labels: Ints, predictions: Ints, counts: Ints | None = None, /) -> float: ...


def accuracy(labels: Ints, predictions: Ints, counts: Ints | None = None) -> float:
    """The share of examples that are right."""
    return float(accuracy_score(labels, predictions, sample_weight=counts))


def f1(labels: Ints, predictions: Ints, counts: Ints | None = None) -> float:
    """F1 of the class 1, as GLUE scores MRPC and QQP; 0 if it neither occurs nor is predicted."""
    return float(f1_score(labels == 1, predictions == 1, sample_weight=counts, zero_division=0.0))


def macro_f1(labels: Ints, predictions: Ints, counts: Ints | None = None) -> float:
    """The mean of F1 over the classes that occur among labels or predictions."""
    return float(f1_score(labels, predictions, average="macro", sample_weight=counts, zero_division=0.0))


def matthews(labels: Ints, predictions: Ints, counts: Ints | None = None) -> float:
    """Matthews' correlation for any number of classes (Gorodkin 2004), as GLUE scores CoLA; 0 where it is undefined."""
    if len(np.union1d(labels, predictions)) < 2:
        return 0.0
    return float(matthews_corrcoef(labels, predictions, sample_weight=counts))


METRICS: dict[str, Metric] = {"accuracy": accuracy, "f1": f1, "macro_f1": macro_f1, "matthews": matthews}


def score(names: tuple[str, ...], labels: Ints, predictions: Ints) -> dict[str, float]:
    """The metrics of those names; 0 where there are no examples."""
    return {name: METRICS[name](labels, predictions) if len(labels) else 0.0 for name in names}


def confusion_matrix(labels: Ints, predictions: Ints, classes: int) -> Ints:
    """Counts [classes, classes]: rows are the true labels, columns the predicted ones."""
    if not len(labels):
        return np.zeros((classes, classes), dtype=np.int64)
    return np.asarray(counted(labels, predictions, labels=range(classes)), dtype=np.int64)


def intervals(
    names: tuple[str, ...], labels: Ints, predictions: Ints, seed: int, resamples: int = 1000
) -> dict[str, tuple[float, float]]:
    """The bootstrap interval of each of these metrics, see `model.tasks.metrics.bootstrap`.

    A resample is counted into its confusion matrix, and the metric taken of the matrix' cells with their counts as weights: that is
    the metric of the resample, at a cost that does not grow with it.
    """
    classes = int(max(labels.max(initial=0), predictions.max(initial=0))) + 1
    cells = labels * classes + predictions

    def figure(metric: Metric) -> Callable[[Ints], float]:
        def of(chosen: Ints) -> float:
            counts = np.bincount(cells[chosen], minlength=classes * classes)
            there = np.flatnonzero(counts)
            return metric(there // classes, there % classes, counts[there])

        return of

    return {name: interval(figure(METRICS[name]), len(labels), seed, resamples) for name in names}
