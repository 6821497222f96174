"""The metrics by their definitions, at the edges too, and the bootstrap interval against its normal
approximation.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from cloze.core.label_metrics import CLASSIFICATION
from cloze.model.tasks import metrics
from cloze.model.tasks.metrics import interval

pairs = st.integers(1, 40).flatmap(
    lambda n: st.tuples(
        *[
            st.lists(st.integers(0, 3), min_size=n, max_size=n).map(
                lambda v: np.array(v, dtype=np.int64)
            )
        ]
        * 2
    )
)


def score(name, labels, found):
    return metrics.scores((name,), labels, found)[name]


def _f1(wanted, found):
    total = wanted.sum() + found.sum()
    return 2 * (wanted & found).sum() / total if total else 0.0


@given(pairs)
@settings(max_examples=30, deadline=None)
def test_metrics_are_what_the_papers_define(drawn):
    labels, found = drawn
    assert score("accuracy", labels, found) == pytest.approx(
        sum(a == b for a, b in zip(labels, found, strict=True)) / len(labels)
    )
    assert score("f1", labels, found) == pytest.approx(_f1(labels == 1, found == 1))
    classes = sorted({*labels.tolist(), *found.tolist()})
    assert score("macro_f1", labels, found) == pytest.approx(
        np.mean([_f1(labels == c, found == c) for c in classes])
    )
    matrix = metrics.confusion_matrix(labels, found, 4)
    assert all(
        matrix[a, b] == ((labels == a) & (found == b)).sum() for a in range(4) for b in range(4)
    )


@given(pairs)
@settings(max_examples=30, deadline=None)
def test_they_are_scikit_learn_s(drawn):
    labels, found = drawn
    undefined = {"zero_division": 0.0}
    expected = {
        "accuracy": accuracy_score(labels, found),
        "f1": f1_score(labels == 1, found == 1, **undefined),
        "macro_f1": f1_score(labels, found, average="macro", **undefined),
    }
    if len({*labels, *found}) > 1:
        expected["matthews"] = matthews_corrcoef(labels, found)
    assert metrics.scores(tuple(expected), labels, found) == pytest.approx(expected, rel=1e-14)


@given(pairs)
@settings(max_examples=30, deadline=None)
def test_matthews_is_the_correlation_of_one_hot_vectors(drawn):
    labels, found = (np.eye(4)[values] for values in drawn)
    covariance = [
        ((a - a.mean(0)) * (b - b.mean(0))).sum()
        for a, b in ((labels, found), (labels, labels), (found, found))
    ]
    expected = (
        covariance[0] / math.sqrt(covariance[1] * covariance[2])
        if covariance[1] * covariance[2] > 1e-9
        else 0.0
    )
    assert score("matthews", *drawn) == pytest.approx(expected)


def test_one_class_and_unseen_classes_are_scored_without_a_warning():
    ones, twos = np.ones(5, dtype=np.int64), np.full(5, 2)
    assert metrics.scores(tuple(CLASSIFICATION), ones, ones) == {
        "accuracy": 1,
        "f1": 1,
        "macro_f1": 1,
        "micro_f1": 1,
        "directed_f1": 1,
        "matthews": 0,
    }
    assert metrics.scores(tuple(CLASSIFICATION), ones, twos) == {
        "accuracy": 0,
        "f1": 0,
        "macro_f1": 0,
        "micro_f1": 0,
        "directed_f1": 0,
        "matthews": 0,
    }
    assert score("f1", twos, twos) == 0.0


@given(pairs)
@settings(max_examples=30, deadline=None)
def test_relations_are_scored_without_the_negative_class(drawn):
    """TACRED's micro F1, and SemEval-2010's F1 of relations whose direction counts."""
    labels, found = drawn
    micro = f1_score(labels, found, labels=[1, 2, 3], average="micro", zero_division=0)
    assert score("micro_f1", labels, found) == pytest.approx(micro)
    both = []
    for classes in ((1, 2), (3, 4)):
        right = ((labels == found) & np.isin(labels, classes)).sum()
        total = np.isin(labels, classes).sum() + np.isin(found, classes).sum()
        both += [2 * right / total] if total else []
    assert score("directed_f1", labels, found) == pytest.approx(np.mean(both) if both else 0)


def test_metrics_of_nothing_are_zero():
    nothing = np.zeros(0, dtype=np.int64)
    assert set(metrics.scores(tuple(CLASSIFICATION), nothing, nothing).values()) == {0.0}
    assert metrics.classification_intervals(("accuracy", "f1"), nothing, nothing, seed=1) == {
        "accuracy": [0.0, 0.0],
        "f1": [0.0, 0.0],
    }
    assert metrics.confusion_matrix(nothing, nothing, 2).tolist() == [[0, 0], [0, 0]]
    empty = np.zeros(0)
    assert set(metrics.scores(("pearson", "spearman"), empty, empty).values()) == {0.0}
    assert metrics.regression_intervals(("pearson",), empty, empty, seed=1) == {
        "pearson": [0.0, 0.0]
    }


def test_interval_is_that_of_a_binomial_and_depends_on_the_seed_alone():
    ones = np.ones(900, dtype=np.int64)
    found = (np.arange(900) % 10 < 8).astype(np.int64)
    low, high = metrics.classification_intervals(("accuracy",), ones, found, seed=3)["accuracy"]
    half = 1.96 * np.sqrt(0.8 * 0.2 / 900)
    assert low == pytest.approx(0.8 - half, abs=0.006)
    assert high == pytest.approx(0.8 + half, abs=0.006)
    assert [low, high] == metrics.classification_intervals(("accuracy",), ones, found, seed=3)[
        "accuracy"
    ]
    assert [low, high] != metrics.classification_intervals(("accuracy",), ones, found, seed=4)[
        "accuracy"
    ]


def test_interval_of_a_perfect_score_is_a_point():
    labels = np.arange(20) % 2
    assert metrics.classification_intervals(("accuracy", "f1"), labels, labels, seed=1) == {
        "accuracy": [1.0, 1.0],
        "f1": [1.0, 1.0],
    }


def test_intervals_are_those_of_resampled_pairs():
    """Metrics of a resample's confusion matrix are those of the resample, and no label is torn from
    its prediction.
    """
    draw = np.random.default_rng(1)
    labels = draw.integers(0, 3, 60)
    found = np.where(draw.random(60) < 0.6, labels, draw.integers(0, 3, 60))
    names = tuple(CLASSIFICATION)
    by_matrix = metrics.classification_intervals(names, labels, found, seed=2, resamples=40)
    for name in names:
        plain = interval(
            lambda chosen, name=name: score(name, labels[chosen], found[chosen]),
            60,
            seed=2,
            resamples=40,
        )
        assert by_matrix[name] == pytest.approx(plain)


def test_interval_of_a_correlation_is_fishers():
    draw = np.random.default_rng(5)
    scores = draw.normal(size=800)
    found = 0.8 * scores + 0.6 * draw.normal(size=800)
    low, high = metrics.regression_intervals(("pearson",), scores, found, seed=1, resamples=500)[
        "pearson"
    ]
    middle = np.arctanh(metrics.pearson(scores, found))
    assert low == pytest.approx(np.tanh(middle - 1.96 / np.sqrt(797)), abs=0.01)
    assert high == pytest.approx(np.tanh(middle + 1.96 / np.sqrt(797)), abs=0.01)


def test_correlations_are_what_the_papers_define():
    scores, found = np.array([0.0, 1.0, 2.0, 4.0, 4.0]), np.array([0.5, 0.5, 3.0, 2.0, 9.0])
    centred, other = scores - scores.mean(), found - found.mean()
    assert metrics.pearson(scores, found) == pytest.approx(
        centred @ other / np.sqrt(centred @ centred * (other @ other))
    )
    ranks, others = (
        np.array([1, 2, 3, 4.5, 4.5]),
        np.array([1.5, 1.5, 4, 3, 5]),
    )  # ties at their mean rank
    assert metrics.spearman(scores, found) == pytest.approx(metrics.pearson(ranks, others))
    assert metrics.spearman(scores, np.exp(scores)) == pytest.approx(1.0)
    assert metrics.pearson(scores, -3 * scores + 7) == pytest.approx(-1.0)


@pytest.mark.parametrize("constant", [0.0, 2.7, 1e9, -1e-9])
def test_a_constant_correlates_with_nothing_and_warns_of_nothing(constant):
    scores = np.array([0.0, 1.0, 5.0])
    for wanted, found in (
        (scores, np.full(3, constant)),
        (np.full(3, constant), scores),
        (scores[:1], scores[:1]),
    ):
        assert metrics.scores(("pearson", "spearman"), wanted, found) == {
            "pearson": 0.0,
            "spearman": 0.0,
        }
