"""A task's score under weights on its examples: what a bootstrap asks thousands of times.

Every score here follows from a confusion matrix, so a resample of the examples costs one product of matrices. Which one a task is scored
by, its `metrics.json` says; the definitions are those of `model.tasks.metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def _accuracy(counts: Floats) -> Floats:
    right: Floats = np.trace(counts, axis1=1, axis2=2)
    share: Floats = right / counts.sum(axis=(1, 2))
    return share


def _f1(counts: Floats) -> Floats:
    """Of the class 1, as GLUE scores MRPC and QQP."""
    return _class_f1(counts)[:, 1] if counts.shape[1] > 1 else np.zeros(len(counts))


def _macro_f1(counts: Floats) -> Floats:
    present = counts.sum(axis=1) + counts.sum(axis=2) > 0
    mean: Floats = (_class_f1(counts) * present).sum(axis=1) / present.sum(axis=1)
    return mean


def _class_f1(counts: Floats) -> Floats:
    right = np.diagonal(counts, axis1=1, axis2=2)
    asked = counts.sum(axis=1) + counts.sum(axis=2)
    found: Floats = np.divide(2 * right, asked, out=np.zeros_like(asked), where=asked > 0)
    return found


def _matthews(counts: Floats) -> Floats:
    """For any number of classes (Gorodkin 2004); 0 where it is undefined."""
    true, said, total = counts.sum(axis=2), counts.sum(axis=1), counts.sum(axis=(1, 2))
    covariance = np.trace(counts, axis1=1, axis2=2) * total - (true * said).sum(axis=1)
    spread = np.sqrt((total**2 - (said**2).sum(axis=1)) * (total**2 - (true**2).sum(axis=1)))
    found: Floats = np.divide(covariance, spread, out=np.zeros_like(spread), where=spread > 0)
    return found


METRICS: dict[str, Callable[[Floats], Floats]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "macro_f1": _macro_f1,
    "matthews": _matthews,
}  # of confusion matrices [R, K, K], rows the true classes: scores [R]


def score(metric: str, labels: Sequence[str], predictions: Sequence[str], weights: Floats) -> Floats:
    """The score under each weighting of the examples.

    Args:
        metric: a name in `METRICS`.
        labels, predictions: of N examples; the sorted names are the classes 0, 1, … .
        weights: float64 [R, N], not negative, of each row at least one positive.

    Returns:
        float64 [R].
    """
    names = sorted({*labels, *predictions})
    place = {name: number for number, name in enumerate(names)}
    cells = np.array(
        [place[true] * len(names) + place[said] for true, said in zip(labels, predictions, strict=True)], dtype=np.int64
    )
    counts = np.zeros((len(weights), len(names) ** 2))
    for cell in np.unique(cells):
        counts[:, cell] = weights[:, cells == cell].sum(axis=1)
    return METRICS[metric](counts.reshape(len(weights), len(names), len(names)))
