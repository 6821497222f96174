"""The metrics against scikit-learn, and the bootstrap interval against its normal approximation."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from model.tasks import metrics

pairs = st.integers(1, 40).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 3), min_size=n, max_size=n).map(lambda v: np.array(v, dtype=np.int64))] * 2)
)


@given(pairs)
@settings(max_examples=60, deadline=None)
def test_metrics_equal_scikit_learns(drawn):
    labels, found = drawn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert metrics.accuracy(labels, found) == pytest.approx(sklearn.metrics.accuracy_score(labels, found))
        assert metrics.macro_f1(labels, found) == pytest.approx(sklearn.metrics.f1_score(labels, found, average="macro"))
        assert metrics.matthews(labels, found) == pytest.approx(sklearn.metrics.matthews_corrcoef(labels, found))
        binary = labels == 1, found == 1
        assert metrics.f1(labels, found) == pytest.approx(sklearn.metrics.f1_score(*binary, zero_division=0))
    expected = sklearn.metrics.confusion_matrix(labels, found, labels=range(4))
    assert (metrics.confusion_matrix(labels, found, 4) == expected).all()


def test_metrics_of_nothing_are_zero():
    nothing = np.zeros(0, dtype=np.int64)
    assert set(metrics.score(tuple(metrics.METRICS), nothing, nothing).values()) == {0.0}
    assert metrics.bootstrap_interval(nothing == 0, seed=1) == (0.0, 0.0)


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
