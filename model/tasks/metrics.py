"""Metrics of tasks, from 0 to 1 (correlations from -1), and their bootstrap intervals.

    intervals       any metric, over resampled examples
    classification  by `cloze.core.label_metrics`: accuracy, F1, Matthews' correlation
    relations       F1 without the negative class, as TACRED and SemEval-2010
    regression      scipy: correlations, as GLUE for STS-B
    tagging         seqeval: entities with exact extent and type, as in conlleval
    SQuAD           `evaluate-v1.1.py`, `evaluate-v2.0.py`

A metric is 0 where it is undefined.
scipy and seqeval take a second to import, so only the functions that call them do.
"""

from __future__ import annotations

import itertools
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from cloze.core import random_keys
from cloze.core.label_metrics import CLASSIFICATION
from cloze.core.ragged import I64

Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Vectors = npt.NDArray[np.float32]

TAIL = (1.0 - 0.95) / 2.0  # share of the resamples on either side of an interval


def interval(
    metric: Callable[[I64], float], examples: int, seed: int, resamples: int = 1000
) -> list[float]:
    """Return the lower and upper bound of a metric over resampled examples.

    A resample depends only on its number and the seed, so the interval is reproducible everywhere.

    Args:
        metric: metric of the examples with these numbers, int64 [n], with repeats.
        examples: number of examples; 0 gives [0, 0].
    """
    if not examples:
        return [0.0, 0.0]
    return bounds([metric(indices) for indices in _resampled(examples, seed, resamples)])


def _resampled(examples: int, seed: int, resamples: int) -> Iterator[I64]:
    positions = np.arange(examples)
    for number in range(resamples):
        keys = random_keys.fold_in(seed, number, positions)
        yield random_keys.randint_below(keys, examples).astype(np.int64)


def bounds(values: Sequence[float] | Floats) -> list[float]:
    """Return the lower and upper bound of a metric's values over resamples."""
    return [float(bound) for bound in np.quantile(values, [TAIL, 1.0 - TAIL])]


def mean_interval(values: Floats, seed: int, resamples: int) -> list[float]:
    """Return the bootstrap interval of the mean of one value per example."""
    return interval(lambda indices: float(values[indices].mean()), len(values), seed, resamples)


# Classification, by `CLASSIFICATION` in `cloze.core.label_metrics`.

BLOCK_NUMBERS = 1 << 22  # numbers of a block of resamples: 32 MiB


def confusion_matrix(labels: I64, predictions: I64, classes: int) -> I64:
    """Return counts [classes, classes]: rows are true labels, columns predicted ones."""
    cells = np.bincount(labels * classes + predictions, minlength=classes * classes)
    return cells.reshape(classes, classes)


def _classes(labels: I64, predictions: I64) -> int:
    return int(max(labels.max(), predictions.max())) + 1


def classification_intervals(
    names: Sequence[str],
    labels: I64,
    predictions: I64,
    seed: int,
    resamples: int = 1000,
    groups: I64 | None = None,
) -> dict[str, list[float]]:
    """Return the bootstrap interval of each metric, see `interval`.

    Args:
        groups: int64 [n], number of each example's group, such as a word's sentence; groups are
            resampled as a whole. None: each example alone.
    """
    if not len(labels):
        return {name: [0.0, 0.0] for name in names}
    classes = _classes(labels, predictions)
    cells = labels * classes + predictions
    size = len(labels) if groups is None else int(groups.max()) + 1
    values: dict[str, list[Floats]] = {name: [] for name in names}
    draws = _resampled(size, seed, resamples)
    while block := list(itertools.islice(draws, max(1, BLOCK_NUMBERS // classes**2))):
        drawn = (np.bincount(indices, minlength=size) for indices in block)
        weights = drawn if groups is None else (counts[groups] for counts in drawn)
        rows = [np.bincount(cells, each, minlength=classes**2) for each in weights]
        matrices = np.array(rows, np.float64).reshape(-1, classes, classes)
        for name in names:
            values[name].append(CLASSIFICATION[name](matrices))
    return {name: bounds(np.concatenate(found)) for name, found in values.items()}


# Regression.

ROUNDING = 1e-12  # relative spread below which values count as constant


def pearson(scores: Floats, predictions: Floats) -> float:
    """Return Pearson's correlation; 0 if scores or predictions are constant."""
    from scipy.stats import pearsonr

    constant = _is_constant(scores) or _is_constant(predictions)
    return 0.0 if constant else float(pearsonr(scores, predictions).statistic)


def spearman(scores: Floats, predictions: Floats) -> float:
    """Return Spearman's rank correlation, ties at mean rank; 0 for constant values."""
    from scipy.stats import spearmanr

    constant = _is_constant(scores) or _is_constant(predictions)
    return 0.0 if constant else float(spearmanr(scores, predictions).statistic)


def _is_constant(values: Floats) -> bool:
    return len(values) < 2 or float(np.ptp(values)) <= ROUNDING * float(np.abs(values).max())


RegressionMetric = Callable[[Floats, Floats], float]
REGRESSION: Mapping[str, RegressionMetric] = {"pearson": pearson, "spearman": spearman}


def scores(names: Sequence[str], labels: Any, predictions: Any) -> dict[str, float]:
    """Return the named metrics of classification (int64 [n]) or regression (float64 [n]).

    Without examples all are 0.
    """
    if not len(labels):
        return dict.fromkeys(names, 0.0)
    if REGRESSION.keys() >= {*names}:
        return {name: REGRESSION[name](labels, predictions) for name in names}
    matrix = confusion_matrix(labels, predictions, _classes(labels, predictions))
    counts = matrix[None].astype(np.float64)
    return {name: float(CLASSIFICATION[name](counts)[0]) for name in names}


def regression_intervals(
    names: Sequence[str], scores: Floats, predictions: Floats, seed: int, resamples: int = 1000
) -> dict[str, list[float]]:
    """Return the bootstrap interval of each metric."""

    def compute(metric: RegressionMetric, indices: I64) -> float:
        return metric(scores[indices], predictions[indices])

    return {
        name: interval(partial(compute, REGRESSION[name]), len(scores), seed, resamples)
        for name in names
    }


# Tagging.

Tags = Sequence[Sequence[str]]  # tags of each sentence
TAGGING = ("f1", "precision", "recall", "accuracy")


def tagging_scores(gold: Tags, predicted: Tags) -> dict[str, float]:
    """Return micro-averaged F1, precision and recall of entities, and the accuracy of tags."""
    from seqeval.metrics import accuracy_score
    from seqeval.metrics.sequence_labeling import precision_recall_fscore_support

    if not gold:
        return dict.fromkeys(TAGGING, 0.0)
    precision, recall, f1, _ = precision_recall_fscore_support(
        gold, predicted, average="micro", zero_division=0
    )
    values = (f1, precision, recall, accuracy_score(gold, predicted))
    return dict(zip(TAGGING, map(float, values), strict=True))


def tagging_scores_by_type(gold: Tags, predicted: Tags) -> dict[str, dict[str, float]]:
    """Return F1, precision, recall and number of true entities of each type in either input."""
    from seqeval.metrics.sequence_labeling import precision_recall_fscore_support

    from cloze.model.tasks.formats.tag_schemes import entities

    if not gold:
        return {}
    types = sorted(
        {kind for side in (gold, predicted) for tags in side for kind, _, _ in entities(tags)}
    )
    columns = precision_recall_fscore_support(gold, predicted, average=None, zero_division=0)
    return {
        kind: {
            "f1": float(f1),
            "precision": float(precision),
            "recall": float(recall),
            "entities": int(support),
        }
        for kind, precision, recall, f1, support in zip(types, *columns, strict=True)
    }


def tagging_f1_interval(gold: Tags, predicted: Tags, seed: int, resamples: int) -> list[float]:
    """Return the bootstrap interval of F1, resampling sentences."""
    from cloze.model.tasks.formats.tag_schemes import entities

    counts = np.zeros((len(gold), 2), np.int64)  # correct entities, and those of both sides
    for i, (reference, prediction) in enumerate(zip(gold, predicted, strict=True)):
        true, guessed = set(entities(reference)), set(entities(prediction))
        counts[i] = len(true & guessed), len(true) + len(guessed)

    def f1(indices: I64) -> float:
        matched, total = counts[indices].sum(axis=0)
        return float(2.0 * matched / total) if total else 0.0

    return interval(f1, len(gold), seed, resamples)


# SQuAD (Rajpurkar et al. 2016, 2018).

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Normalize a text: lower case, no ASCII punctuation, no articles, single blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """Return 1 if the normalized texts are equal, else 0."""
    return float(normalize_answer(prediction) == normalize_answer(answer))


def answer_f1(prediction: str, answer: str, *, empty_matches: bool = True) -> float:
    """Return F1 of the normalized words, as bags.

    Args:
        empty_matches: true if two texts without words match, as in 2.0; in 1.1 they do not.
    """
    predicted, expected = normalize_answer(prediction).split(), normalize_answer(answer).split()
    if not predicted or not expected:
        return float(empty_matches and predicted == expected)
    common = (Counter(predicted) & Counter(expected)).total()
    return 2.0 * common / (len(predicted) + len(expected))


def question_scores(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], *, unanswerable: bool
) -> tuple[Floats, Floats]:
    """Return exact match and F1 of each question, for the reference answer with the best value.

    Args:
        predictions: predicted texts; empty for "no answer".
        answers: reference answers of each question, at least one; with `unanswerable` none for
            unanswerable questions.
        unanswerable: true for the rules of 2.0: answers without words are ignored, and without
            any other answer the empty text is right.

    Returns:
        float64 [n] each, from 0 to 1.
    """
    exacts, f1s = np.zeros(len(predictions)), np.zeros(len(predictions))
    for i, (prediction, texts) in enumerate(zip(predictions, answers, strict=True)):
        if unanswerable:
            texts = [text for text in texts if normalize_answer(text)] or [""]
        exacts[i] = max(exact_match(prediction, text) for text in texts)
        f1s[i] = max(answer_f1(prediction, text, empty_matches=unanswerable) for text in texts)
    return exacts, f1s


def best_threshold(
    scores: Floats, odds: Floats, has_answer: Flags, empty: Flags
) -> tuple[float, float]:
    """Return the best mean score over thresholds of the "no answer" odds, and that threshold.

    Questions with odds above the threshold get no answer. Unlike `find_best_thresh` of
    evaluate-v2.0.py, questions with equal odds stay together, and a threshold that answers none is
    below all odds.

    Args:
        scores: float [n], scores of the best answers; 0 for unanswerable questions.
        odds: float [n], odds of "no answer".
        has_answer: bool [n], answerable questions.
        empty: bool [n], best answers without text, which cost an unanswerable question nothing.

    Returns:
        Mean score from 0 to 1, and threshold; the lowest on ties.
    """
    if not len(scores):
        return 0.0, 0.0
    order = np.argsort(odds, kind="stable")
    gains = np.where(has_answer, scores, np.where(empty, 0.0, -1.0))[order]
    totals = float((~has_answer).sum()) + np.concatenate([[0.0], np.cumsum(gains)])
    ranked = odds[order]
    equals_next = np.append(ranked[:-1] == ranked[1:], False)  # no threshold between the two
    totals[1:][equals_next] = -np.inf
    best = int(np.argmax(totals))
    return float(totals[best] / len(scores)), float(ranked[best - 1] if best else ranked[0] - 1.0)
