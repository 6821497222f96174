"""Metrics of predicted labels, from 0 to 1: evaluation and promotion gate compute the same.

Each maps R confusion matrices, float64 [R, K, K] with the true classes in rows and at least one
example, to float64 [R]. A bootstrap computes a thousand at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
# tags of entities in all schemes: BIO, IOB1, BIOES, BILOU, BMES, BMEWO
ENTITY_TAG = re.compile(r"O|[BIESLUMW](-.+)?", re.DOTALL)


def accuracy(counts: Floats) -> Floats:
    """Return the share of correct examples."""
    share: Floats = np.trace(counts, axis1=1, axis2=2) / counts.sum(axis=(1, 2))
    return share


def f1(counts: Floats) -> Floats:
    """Return F1 of class 1, as GLUE for MRPC and QQP; 0 if it neither occurs nor is predicted."""
    return _mean_f1(counts, np.arange(counts.shape[1]) == 1)


def macro_f1(counts: Floats) -> Floats:
    """Return the mean F1 of the classes among labels or predictions."""
    return _mean_f1(counts, np.arange(counts.shape[1]) + 1)


def micro_f1(counts: Floats) -> Floats:
    """Return micro F1 of all classes but 0, the negative one, as TACRED (Zhang et al. 2017)."""
    return _mean_f1(counts, np.arange(counts.shape[1]) > 0)


def directed_f1(counts: Floats) -> Floats:
    """Return the official score of SemEval-2010's task 8: mean F1 of relations in two directions.

    Class 0, Other, is excluded. Classes 2 k - 1 and 2 k are the directions of relation k; a right
    relation in the wrong direction is an error. The mean is over relations that occur.
    """
    return _mean_f1(counts, (np.arange(counts.shape[1]) + 1) // 2)


def _mean_f1(counts: Floats, groups: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Floats:
    """Return the mean F1 of the groups of classes that occur.

    `groups`: number of each class's group, [K]; group 0 is excluded.
    """
    # [K, groups], 1 where a class is in a group: products with it add up classes.
    member = (groups[:, None] == np.arange(1, groups.max() + 1)).astype(np.float64)
    right = np.diagonal(counts, axis1=1, axis2=2) @ member
    # F1 = 2 TP / (predicted + true): no case for a precision or recall that is undefined.
    total = (counts.sum(axis=1) + counts.sum(axis=2)) @ member
    scores = np.divide(2 * right, total, out=np.zeros_like(total), where=total > 0)
    mean: Floats = scores.sum(axis=1) / np.maximum(1, np.count_nonzero(total, axis=1))
    return mean


def matthews(counts: Floats) -> Floats:
    """Return Matthews' correlation (Gorodkin 2004), as GLUE for CoLA; 0 if undefined."""
    true, predicted, total = counts.sum(axis=2), counts.sum(axis=1), counts.sum(axis=(1, 2))
    # Gorodkin's R_K from the margins: for two classes the usual coefficient.
    covariance = np.trace(counts, axis1=1, axis2=2) * total - (true * predicted).sum(axis=1)
    spread = np.sqrt((total**2 - (predicted**2).sum(axis=1)) * (total**2 - (true**2).sum(axis=1)))
    correlation: Floats = np.divide(covariance, spread, out=np.zeros_like(spread), where=spread > 0)
    return correlation


CLASSIFICATION: Mapping[str, Callable[[Floats], Floats]] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "micro_f1": micro_f1,
    "directed_f1": directed_f1,
    "matthews": matthews,
}

# Scores of labels that do not depend on the order of the classes, apart from F1's class 1.
COMPARED_METRICS = {
    name: CLASSIFICATION[name] for name in ("accuracy", "f1", "macro_f1", "matthews")
}


def score(
    metric: str,
    labels: Sequence[str],
    predictions: Sequence[str],
    weights: Floats,
    classes: Sequence[str] = (),
) -> Floats:
    """Return the score under each weighting of the examples, float64 [R].

    Args:
        metric: a name in `COMPARED_METRICS`.
        labels, predictions: label names of N examples.
        weights: float64 [R, N], not negative; each row has a positive one.
        classes: names of the classes 0, 1, …; if they lack a label, the sorted labels are.
    """
    names = sorted({*labels, *predictions})
    names = list(classes) if {*names} <= {*classes} else names
    numbers = {name: number for number, name in enumerate(names)}
    pairs = zip(labels, predictions, strict=True)
    # Confusion matrices of all resamples at once: a metric per resample takes minutes.
    cells = np.array(
        [numbers[true] * len(names) + numbers[predicted] for true, predicted in pairs],
        dtype=np.int64,
    )
    counts = np.zeros((len(weights), len(names) ** 2))
    for cell in np.unique(cells):
        counts[:, cell] = weights[:, cells == cell].sum(axis=1)
    return COMPARED_METRICS[metric](counts.reshape(len(weights), len(names), len(names)))
