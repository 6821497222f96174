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
from cloze.core.label_metrics import score
from cloze.flows.nightly.evaluation_results import Scores
from cloze.flows.nightly.promotion_gate import (
    BETTER,
    NOISE,
    SeedScores,
    TaskPredictions,
    TextLosses,
    choose,
    decide,
)
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
    assert decision.why.startswith("kept: t +0.01 (+0.01 to +0.01")


@given(
    st.floats(0, 1), st.floats(0, 1), st.integers(2, 5), st.integers(2, 5),
    st.sampled_from(["better", "not_worse"]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_equal_scores_of_seeds_are_no_certainty(
    own: float, other: float, seeds: int, others: int, promote_if: Any
) -> None:
    """The interval has no width: noise was not seen, which is not the same as that there is none."""
    decision = decide(
        by_seeds("f1", *[own] * seeds), by_seeds("f1", *[other] * others), promote_if=promote_if
    )
    (found,) = decision.comparisons
    assert found.verdict != BETTER
    assert "equal scores show no noise" in decision.why
    assert decision.promoted == (found.verdict == NOISE and promote_if == "not_worse")


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=3),
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=3),
)
@settings(max_examples=200, deadline=None)
@pytest.mark.filterwarnings("error")
def test_every_finite_figure_is_compared(own: list[float], other: list[float]) -> None:
    """Sums and squares of figures near 1e308 overflow, of those near 1e-308 vanish."""
    groups = range(len(own))
    for champion, candidate in (
        (by_seeds("f1", *own), by_seeds("f1", *other)),
        (by_seeds("loss", *other), by_seeds("loss", *own)),
        *(
            tuple(
                {"t": TextLosses(examples="x", predictions=[3 for _ in groups], losses=losses)}
                for losses in pair
            )
            for pair in [(own, (other * 2)[: len(own)])]
        ),
    ):
        best, decision = choose(champion, {"a": candidate, "b": champion}, resamples=20)
        mirrored = decide(candidate, champion, resamples=20)
        decision = decide(champion, candidate, resamples=20)
        assert best in ("a", "b")
        assert not (decision.promoted and mirrored.promoted)
        assert "nan" not in decision.why + mirrored.why
        assert "inf" not in decision.why + mirrored.why
        assert decide(champion, champion, promote_if="not_worse", resamples=20).promoted


@pytest.mark.parametrize("scale", [1e-305, 1e-160, 1.0, 1e160, 1e305])
def test_a_lead_is_one_in_every_unit(scale: float) -> None:
    own, other = (
        by_seeds("f1", *[scale * each for each in values])
        for values in ((0.1, 0.11, 0.12), (0.8, 0.81, 0.79))
    )
    assert decide(own, other).promoted
    assert not decide(other, own).promoted
    mean_of = Scores(metric={"t": "f1"}, values={"t": {"1": 1e308, "2": 1e308}})
    assert mean_of.mean == pytest.approx(1e308)


@pytest.mark.parametrize("classes", [("0", "1"), ("1", "0"), ("yes", "no"), ()])
def test_f1_is_of_the_task_s_class_1(classes: tuple[str, ...]) -> None:
    names = classes or ("no", "yes")
    labels = [names[0], names[1], names[1], names[0], names[0]]
    said = [names[0], names[1], names[0], names[1], names[0]]
    weights = np.ones((1, 5))
    (found,) = score("f1", labels, said, weights, classes)
    assert found == pytest.approx(2 * 1 / (2 * 1 + 1 + 1))
    (only,) = score("f1", [names[1]] * 2, [names[1]] * 2, np.ones((1, 2)), names)
    assert only == 1.0


def test_labels_scored_by_different_metrics_are_not_compared() -> None:
    labels = ["0", "1"] * 10
    own, other = (
        {"t": TaskPredictions(metric=m, examples="x", labels=labels, predictions={"1": said})}
        for m, said in (("accuracy", ["0"] * 20), ("f1", labels))
    )
    decision = decide(own, other)
    assert not decision.promoted
    assert decision.left_out == {"t": "the scores are different metrics"}
