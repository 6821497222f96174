"""What a figure is for the gate: any kind of number, the metric's direction, ties up to rounding."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core.figures import check_figures, goodness, is_finite, lower_is_better
from cloze.flows.nightly.evaluation_results import Scores
from cloze.flows.nightly.promotion_gate import NOISE, SeedScores, TaskPredictions, decide
from cloze.model.train.loop import loop

ERRORS = (
    "loss",
    "heldout_perplexity",
    "cross_entropy",
    "word_error_rate",
    "wer",
    "rmse",
    "dev/mae",
)


def by_seeds(metric: str, *values: Any) -> dict[str, Any]:
    scores = {str(seed): value for seed, value in enumerate(values)}
    return {"t": SeedScores(metric=metric, values=scores)}


@pytest.mark.parametrize("value", [np.float32(0.5), np.float64(0.5), np.int64(3), 7])
def test_numbers_of_numpy_are_numbers(value: Any) -> None:
    assert is_finite(value)
    assert goodness(value) == value
    check_figures("x", {"f1": value})


@pytest.mark.parametrize("value", [10**400, -(10**400), np.float32("nan"), np.float64("inf")])
def test_a_number_that_no_float_holds_is_not_finite(value: Any) -> None:
    assert not is_finite(value)
    assert goodness(value) == goodness(value, "loss") == -math.inf
    with pytest.raises(Exception, match="f1 is"):
        check_figures("x", {"f1": value})
    assert not decide(by_seeds("f1", 0.1, 0.2), by_seeds("f1", value, 0.9)).promoted


@pytest.mark.parametrize("metric", ERRORS)
def test_a_lower_error_wins_everywhere(metric: str) -> None:
    assert lower_is_better(metric)
    low, high = by_seeds(metric, 0.10, 0.11), by_seeds(metric, 0.90, 0.91)
    assert decide(high, low).promoted
    assert not decide(low, high).promoted
    means = [
        Scores(metric={"t": metric}, values={"t": dict(own["t"].values)}).mean
        for own in (low, high)
    ]
    assert means[0] > means[1]


def test_a_score_whose_name_contains_the_letters_of_an_error_is_a_score() -> None:
    names = ("accuracy", "gloss_f1", "maestro_f1", "power", "inner_f1", "terror_f1", "")
    assert not any(map(lower_is_better, names))


@pytest.mark.parametrize(("metric", "best"), [("dev_rmse", 2), ("dev_f1", 1)])
def test_the_best_step_of_a_training_is_that_of_its_metric_s_direction(
    monkeypatch: pytest.MonkeyPatch, metric: str, best: int
) -> None:
    monkeypatch.setattr(loop, "require_finite_weights", lambda *_: None)
    figures = {1: 0.9, 2: 0.4, 3: math.nan, 4: 0.5}
    progress = SimpleNamespace(step=0, best=None)

    def evaluate(step: int, *_: Any) -> dict[str, float]:
        return {metric: figures[step]}

    evaluate.best_metric = metric  # type: ignore[attr-defined]
    training = SimpleNamespace(evaluator=evaluate, trained=SimpleNamespace(model=None))
    own: Any = SimpleNamespace(
        training=training, progress=progress, world=None, _stop_requested=None
    )
    for progress.step in figures:
        loop._TrainingLoop._evaluate(own, {}, None)  # type: ignore[arg-type]
    assert progress.best == {"step": best, metric: figures[best]}


@given(
    st.floats(-1e6, 1e6), st.integers(2, 4), st.sampled_from([0.0, 1e-16, -1e-15, 1e-13]),
    st.sampled_from(["better", "not_worse"]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_figures_that_differ_by_rounding_are_a_tie(
    value: float, seeds: int, error: float, promote_if: Any
) -> None:
    own = by_seeds("f1", *[value] * seeds)
    other = by_seeds("f1", *[value * (1 + error)] * seeds)
    decision = decide(own, other, promote_if=promote_if)
    assert [found.verdict for found in decision.comparisons] == [NOISE]
    assert decision.promoted == (promote_if == "not_worse")


def test_a_small_lead_is_shown_as_one() -> None:
    decision = decide(by_seeds("f1", 0.3, 0.3), by_seeds("f1", 0.3001, 0.3001))
    assert decision.why.startswith("promoted: t +0.01 (+0.01 to +0.01")


def test_labels_scored_by_different_metrics_are_not_compared() -> None:
    labels = ["0", "1"] * 10
    own, other = (
        {"t": TaskPredictions(metric=m, examples="x", labels=labels, predictions={"1": said})}
        for m, said in (("accuracy", ["0"] * 20), ("f1", labels))
    )
    decision = decide(own, other)
    assert not decision.promoted
    assert decision.left_out == {"t": "the scores are different metrics"}
