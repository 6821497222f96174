"""The metrics by their definitions, at the edges too, and the bootstrap interval against its normal approximation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.tasks import metrics

pairs = st.integers(1, 40).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 3), min_size=n, max_size=n).map(lambda v: np.array(v, dtype=np.int64))] * 2)
)


def _f1(wanted, found):
    total = wanted.sum() + found.sum()
    return 2 * (wanted & found).sum() / total if total else 0.0


@given(pairs)
@settings(max_examples=60, deadline=None)
def test_metrics_are_what_the_papers_define(drawn):
    labels, found = drawn
    assert metrics.accuracy(labels, found) == pytest.approx(
        sum(a == b for a, b in zip(labels, found, strict=True)) / len(labels)
    )
    assert metrics.f1(labels, found) == pytest.approx(_f1(labels == 1, found == 1))
    classes = sorted({*labels.tolist(), *found.tolist()})
    assert metrics.macro_f1(labels, found) == pytest.approx(np.mean([_f1(labels == c, found == c) for c in classes]))
    matrix = metrics.confusion_matrix(labels, found, 4)
    assert all(matrix[a, b] == ((labels == a) & (found == b)).sum() for a in range(4) for b in range(4))


@given(pairs)
@settings(max_examples=60, deadline=None)
def test_matthews_is_the_correlation_of_one_hot_vectors(drawn):
    labels, found = (np.eye(4)[values] for values in drawn)
    covariance = [((a - a.mean(0)) * (b - b.mean(0))).sum() for a, b in ((labels, found), (labels, labels), (found, found))]
    expected = covariance[0] / math.sqrt(covariance[1] * covariance[2]) if covariance[1] * covariance[2] > 1e-9 else 0.0
    assert metrics.matthews(*drawn) == pytest.approx(expected)


def test_one_class_and_unseen_classes_are_scored_without_a_warning():
    ones, twos = np.ones(5, dtype=np.int64), np.full(5, 2)
    assert metrics.score(tuple(metrics.METRICS), ones, ones) == {"accuracy": 1, "f1": 1, "macro_f1": 1, "matthews": 0}
    assert metrics.score(tuple(metrics.METRICS), ones, twos) == {"accuracy": 0, "f1": 0, "macro_f1": 0, "matthews": 0}
    assert metrics.f1(twos, twos) == 0.0


def test_metrics_of_nothing_are_zero():
    nothing = np.zeros(0, dtype=np.int64)
    assert set(metrics.score(tuple(metrics.METRICS), nothing, nothing).values()) == {0.0}
    assert metrics.bootstrap_interval(nothing == 0, seed=1) == (0.0, 0.0)
    assert metrics.confusion_matrix(nothing, nothing, 2).tolist() == [[0, 0], [0, 0]]


def test_interval_is_that_of_a_binomial_and_depends_on_the_seed_alone():
    correct = np.arange(900) % 10 < 8
    low, high = metrics.bootstrap_interval(correct, seed=3)
    half = 1.96 * np.sqrt(0.8 * 0.2 / 900)
    assert low == pytest.approx(0.8 - half, abs=0.006)
    assert high == pytest.approx(0.8 + half, abs=0.006)
    assert (low, high) == metrics.bootstrap_interval(correct, seed=3)
    assert (low, high) != metrics.bootstrap_interval(correct, seed=4)


def test_interval_of_a_perfect_score_is_a_point():
    assert metrics.bootstrap_interval(np.ones(20, dtype=bool), seed=1) == (1.0, 1.0)
