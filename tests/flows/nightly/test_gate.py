"""The gate: who takes over, who does not, and what noise is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core.errors import UsageError
from cloze.flows.nightly.promotion_gate import (
    BETTER,
    COMPARED_METRICS,
    NOISE,
    WORSE,
    SeedScores,
    TaskPredictions,
    TextLosses,
    choose,
    compare,
    decide,
    score,
)
from cloze.model.tasks import metrics as reference

N = 600
LABELS = [str(number % 2) for number in range(N)]


def answers(
    *shares: float, examples: str = "dev", labels: list[str] = LABELS, seed: int = 0
) -> TaskPredictions:
    """A model that answers that share of the examples right, one share a fine-tuning seed; each
    example is hard or easy for all.
    """
    hard = np.random.default_rng(7).random(len(labels))
    said = {}
    for number, share in enumerate(shares):
        shaky = np.clip(
            hard + np.random.default_rng([seed, number]).normal(0, 0.02, len(labels)), 0, 1
        )
        right = shaky <= np.quantile(shaky, share)
        said[str(number)] = [
            label if fine else str(1 - int(label))
            for label, fine in zip(labels, right, strict=True)
        ]
    return TaskPredictions(metric="accuracy", examples=examples, labels=labels, predictions=said)


def test_the_same_answers_are_not_better() -> None:
    champion = answers(0.8, 0.81, 0.79)
    decision = decide({"sst2": champion}, {"sst2": champion})
    assert not decision.promoted
    assert decision.why.startswith("kept: sst2 ±0.0 (")
    assert "within noise" in decision.why


def test_clearly_better_takes_over_and_says_by_how_much() -> None:
    decision = decide(
        {"sst2": answers(0.80, 0.81, 0.79)}, {"sst2": answers(0.88, 0.87, 0.89, seed=1)}
    )
    assert decision.promoted
    (found,) = decision.comparisons
    assert found.verdict == BETTER
    assert found.difference == pytest.approx(8, abs=0.2)
    assert 0 < found.low < 8 < found.high
    assert (
        decision.why == f"promoted: sst2 +8.0 (+{found.low:.1f} to +{found.high:.1f}); 95% interval"
    )


def test_better_on_one_task_and_worse_on_another_stays_outside() -> None:
    low, high = answers(0.7, 0.71), answers(0.9, 0.91, seed=1)
    decision = decide({"sst2": low, "mrpc": high}, {"sst2": high, "mrpc": low})
    assert not decision.promoted
    assert {found.task: found.verdict for found in decision.comparisons} == {
        "sst2": BETTER,
        "mrpc": WORSE,
    }
    assert "mrpc \N{MINUS SIGN}20.0 (\N{MINUS SIGN}" in decision.why
    assert ": worse)" in decision.why


def test_better_on_one_task_and_within_noise_on_another_takes_over() -> None:
    champion = {"sst2": answers(0.7, 0.71), "mrpc": answers(0.8, 0.81)}
    candidate = {"sst2": answers(0.9, 0.91, seed=1), "mrpc": answers(0.805, 0.80, seed=1)}
    decision = decide(champion, candidate)
    assert decision.promoted
    assert ": within noise)" in decision.why
    assert "95% intervals, together" in decision.why


def test_the_intervals_of_several_tasks_hold_together() -> None:
    """Of ten tasks each has the level 99.5 %, so that ten do not open or close the gate by their
    number.
    """
    one, other = answers(0.8, 0.8), answers(0.82, 0.82, seed=1)
    alone = decide({"t": one}, {"t": other}).comparisons[0]
    many = decide({str(n): one for n in range(10)}, {str(n): other for n in range(10)}).comparisons[
        0
    ]
    assert many.difference == alone.difference
    assert many.high - many.low > 1.2 * (alone.high - alone.low)


def test_not_worse_is_enough_only_where_that_was_asked_for() -> None:
    champion, candidate = {"sst2": answers(0.8, 0.81)}, {"sst2": answers(0.805, 0.81, seed=1)}
    assert not decide(champion, candidate).promoted
    assert decide(champion, candidate, promote_if="not_worse").promoted
    assert not decide(champion, {"sst2": answers(0.6, 0.61)}, promote_if="not_worse").promoted


def test_the_scatter_of_seeds_is_noise() -> None:
    """The same difference of means: beyond noise where the seeds agree, within it where they do
    not.
    """
    agreeing = compare("t", answers(0.80, 0.80, 0.80), answers(0.84, 0.84, 0.84), 0.95, 2000, 1)
    scattered = compare("t", answers(0.70, 0.80, 0.90), answers(0.74, 0.84, 0.94), 0.95, 2000, 1)
    assert agreeing.verdict == BETTER
    assert scattered.verdict == NOISE
    assert scattered.high - scattered.low > 2 * (agreeing.high - agreeing.low)


def test_the_pairing_takes_the_examples_noise_out() -> None:
    """Both fail on the same hard examples: far surer than the two scores' own intervals say (each
    about ±3.2).
    """
    found = compare("t", answers(0.80), answers(0.82), 0.95, 2000, 1)
    assert found.high - found.low < 4


def test_only_what_both_have_answered_is_compared() -> None:
    champion = {"sst2": answers(0.7, 0.7), "mrpc": answers(0.7), "cola": answers(0.9)}
    candidate = {
        "sst2": answers(0.9, 0.9, seed=1),
        "mrpc": answers(0.5, examples="another dev"),
        "rte": answers(0.9),
    }
    decision = decide(champion, candidate)
    assert decision.promoted
    assert [found.task for found in decision.comparisons] == ["sst2"]
    assert decision.left_out == {
        "mrpc": "the answers are to different examples",
        "rte": "the champion has no answers",
        "cola": "the candidate has no answers",
    }
    assert all(task in decision.why for task in decision.left_out)
    assert not decide({}, candidate).promoted


def model(
    random: np.random.Generator, difficulty: np.ndarray, seeds: int
) -> dict[str, TaskPredictions]:
    """A model as able as every other: it has its own hard examples, and each seed its own luck."""
    own, said = difficulty + random.normal(0, 0.7, len(difficulty)), {}
    for number in range(seeds):
        right = random.random(len(difficulty)) < 1 / (1 + np.exp(-(own + random.normal(0, 0.15))))
        said[str(number)] = ["1" if fine else "0" for fine in right]
    return {
        "t": TaskPredictions(
            metric="accuracy", examples="dev", labels=["1"] * len(difficulty), predictions=said
        )
    }


@pytest.mark.parametrize("seeds", [1, 3])
def test_of_eight_equal_candidates_one_is_seldom_promoted(seeds: int) -> None:
    """Nights by the real gate, with the 60 examples of the sample: fewer than one in twenty
    promotes anybody.
    """
    nights, promoted = 100, 0
    for night in range(nights):
        random = np.random.default_rng([7, seeds, night])
        difficulty = random.normal(1.2, 1.5, 60)
        champion, *candidates = (model(random, difficulty, seeds) for _ in range(9))
        _, decision = choose(
            champion, {str(number): each for number, each in enumerate(candidates)}, resamples=200
        )
        promoted += decision.promoted
    assert promoted / nights < 0.05


def losses(mean: float, *, examples: str = "text", seed: int = 0) -> TextLosses:
    """Of 64 groups of rows, hard and easy ones, which are the same for every model."""
    hard = np.random.default_rng(3).normal(0, 0.2, 64)
    noise = np.random.default_rng([4, seed]).normal(0, 0.05, 64)
    return TextLosses(
        examples=examples, predictions=[500.0] * 64, losses=[*((mean + hard + noise) * 500)]
    )


def test_held_out_text_sees_what_sixty_answers_do_not() -> None:
    """A perplexity that falls from 631 to 423, and one that falls by three in a hundred."""
    noise = (
        answers(0.80, 0.81, 0.79, labels=LABELS[:60]),
        answers(0.80, 0.82, 0.80, labels=LABELS[:60], seed=1),
    )
    assert not decide({"sst2": noise[0]}, {"sst2": noise[1]}).promoted
    for better in (np.log(423), np.log(631 * 0.97)):
        champion, candidate = (
            {"sst2": noise[0], "text": losses(np.log(631))},
            {"sst2": noise[1], "text": losses(better, seed=1)},
        )
        found = decide(champion, candidate, candidates=8)
        assert found.promoted, found.why
        assert "intervals, together with 8 candidates" in found.why
        assert not decide(candidate, champion, candidates=8).promoted
    assert not decide({"text": losses(6.0)}, {"text": losses(6.0, seed=1)}).promoted
    other = decide({"text": losses(6.0)}, {"text": losses(5.0, examples="another text")})
    assert "text is not compared: the losses are of different text" in other.why


def test_the_best_candidate_is_the_one_that_is_surely_better() -> None:
    champion = {"sst2": answers(0.80, 0.81, 0.79), "text": losses(6.0)}
    lucky = {"sst2": answers(0.82, 0.82, 0.81, seed=1), "text": losses(6.2, seed=1)}
    better = {"sst2": answers(0.80, 0.80, 0.81, seed=2), "text": losses(5.8, seed=2)}
    name, decision = choose(champion, {"lucky": lucky, "better": better})
    assert (name, decision.promoted) == ("better", True)
    assert not choose(champion, {"lucky": lucky})[1].promoted


def test_it_is_the_same_every_time() -> None:
    pair = {"t": answers(0.8, 0.82)}, {"t": answers(0.83, 0.81, seed=1)}
    assert decide(*pair) == decide(*pair)
    assert decide(*pair).comparisons != decide(*pair, seed=2).comparisons


def test_an_unknown_score_is_refused() -> None:
    with pytest.raises(UsageError, match="bleu"):
        TaskPredictions(metric="bleu", examples="dev", labels=["0"], predictions={"1": ["0"]})


@given(
    labels=st.lists(st.integers(0, 2), min_size=1, max_size=30),
    data=st.data(),
    metric=st.sampled_from(sorted(COMPARED_METRICS)),
)
def test_scores_under_weights_are_those_of_the_tasks_on_the_resample(
    labels: list[int], data: st.DataObject, metric: str
) -> None:
    """A weight is how often the example was drawn."""
    said = data.draw(st.lists(st.integers(0, 2), min_size=len(labels), max_size=len(labels)))
    drawn = data.draw(
        st.lists(st.integers(0, len(labels) - 1), min_size=len(labels), max_size=len(labels))
    )
    weights = np.bincount(drawn, minlength=len(labels)).astype(np.float64)
    found = score(metric, [*map(str, labels)], [*map(str, said)], weights[None])
    names = sorted({*labels, *said})
    renamed = [np.array([names.index(value) for value in values]) for values in (labels, said)]
    expected = reference.scores((metric,), renamed[0][drawn], renamed[1][drawn])
    assert found == pytest.approx([expected[metric]])


@settings(max_examples=30)
@given(seeds=st.integers(1, 4), share=st.floats(0.3, 0.9), step=st.floats(-0.1, 0.1))
def test_candidate_and_champion_change_places_with_the_sign(
    seeds: int, share: float, step: float
) -> None:
    one, other = answers(*[share] * seeds), answers(*[share + step] * seeds, seed=1)
    ahead, back = compare("t", one, other, 0.95, 400, 1), compare("t", other, one, 0.95, 400, 1)
    assert ahead.difference == pytest.approx(-back.difference)
    assert ahead.low <= ahead.difference <= ahead.high
    assert (ahead.low, ahead.high) == pytest.approx((-back.high, -back.low), abs=1.5)


def by_seeds(*values: float, metric: str = "f1") -> SeedScores:
    return SeedScores(metric=metric, values={str(seed): value for seed, value in enumerate(values)})


def test_a_task_without_labels_is_compared_by_its_seeds_and_said_so() -> None:
    found = decide({"ner": by_seeds(0.50, 0.51, 0.52)}, {"ner": by_seeds(0.80, 0.81, 0.82)})
    assert found.promoted
    assert (
        "ner +30.0 (+27.7 to +32.3; by seeds alone)" in found.why
    )  # Welch: 30 ± 2.776 * sqrt(2 / 3)
    noise = decide({"ner": by_seeds(0.5, 0.7, 0.6)}, {"ner": by_seeds(0.6, 0.7, 0.65)})
    assert not noise.promoted
    assert "; by seeds alone: within noise)" in noise.why


def test_one_seed_without_labels_says_nothing_about_noise() -> None:
    found = decide({"ner": by_seeds(0.5)}, {"ner": by_seeds(0.8)})
    assert not found.promoted
    assert "ner is not compared: answers without labels need two or more seeds" in found.why
    assert (
        "the scores are different metrics"
        in decide(
            {"ner": by_seeds(0.5, 0.6, metric="f1")}, {"ner": by_seeds(0.8, 0.9, metric="accuracy")}
        ).why
    )


def test_equal_seeds_without_labels_are_no_error() -> None:
    found = decide({"ner": by_seeds(0.5, 0.5)}, {"ner": by_seeds(0.6, 0.6)})
    assert (found.comparisons[0].low, found.comparisons[0].high) == (
        pytest.approx(10),
        pytest.approx(10),
    )
