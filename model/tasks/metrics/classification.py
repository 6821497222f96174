"""Classification metrics of scikit-learn, 0 where undefined, and bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from sklearn.metrics import confusion_matrix as counted

from cloze.model.tasks.metrics.bootstrap import interval

Ints = npt.NDArray[np.int64]


class Metric(Protocol):
    """Metric of labels and predictions, with optional counts: int64 [n], n at least 1."""

    def __call__(self, labels: Ints, predictions: Ints, counts: Ints | None = None, /) -> float: ...


def accuracy(labels: Ints, predictions: Ints, counts: Ints | None = None) -> float:
    """Return the share of correct examples."""
    return float(accuracy_score(labels, predictions, sample_weight=counts))


def f1(labels: Ints, predictions: Ints, counts: Ints | None = None) -> float:
    """Return F1 of class 1, as GLUE for MRPC and QQP; 0 if it neither occurs nor is predicted."""
    return float(f1_score(labels == 1, predictions == 1, sample_weight=counts, zero_division=0.0))


def macro_f1(labels: Ints, predictions: Ints, counts: Ints | None = None) -> float:
    """Return the mean F1 of the classes among labels or predictions."""
    return float(
        f1_score(labels, predictions, average="macro", sample_weight=counts, zero_division=0.0)
    )


def matthews(labels: Ints, predictions: Ints, counts: Ints | None = None) -> float:
    """Return Matthews' correlation (Gorodkin 2004), as GLUE for CoLA; 0 if undefined."""
    if len(np.union1d(labels, predictions)) < 2:
        return 0.0
    return float(matthews_corrcoef(labels, predictions, sample_weight=counts))


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "matthews": matthews,
}


def score(names: tuple[str, ...], labels: Ints, predictions: Ints) -> dict[str, float]:
    """Return the named metrics; 0 without examples."""
    return {name: METRICS[name](labels, predictions) if len(labels) else 0.0 for name in names}


def confusion_matrix(labels: Ints, predictions: Ints, classes: int) -> Ints:
    """Return counts [classes, classes]: rows are true labels, columns predicted ones."""
    if not len(labels):
        return np.zeros((classes, classes), dtype=np.int64)
    return np.asarray(counted(labels, predictions, labels=range(classes)), dtype=np.int64)


def intervals(
    names: tuple[str, ...], labels: Ints, predictions: Ints, seed: int, resamples: int = 1000
) -> dict[str, tuple[float, float]]:
    """Return the bootstrap interval of each metric, see `cloze.model.tasks.metrics.bootstrap`.

    Each metric is computed from a resample's confusion matrix, with the counts as weights. The
    result is exact, at a cost that does not grow with the number of examples.
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
