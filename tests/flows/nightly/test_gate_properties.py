"""The gate under every input: figures that are no numbers, missing ones, ties, any order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.flows.nightly.promotion_gate import (
    BETTER,
    WORSE,
    Result,
    SeedScores,
    TaskPredictions,
    TextLosses,
    choose,
    decide,
)

NOT_FINITE = (math.nan, math.inf, -math.inf)
TASKS = ("held-out text", "squad", "sst2")
SIX = ["0", "1", "1", "0", "1", "0"]


@st.composite
def results(draw: st.DrawFn) -> dict[str, Result]:
    """A model's finite results on some of the tasks, from few values, so that ties are common."""
    own: dict[str, Result] = {}
    if draw(st.booleans()):
        losses = draw(st.lists(st.sampled_from([1.0, 2.0, 9.0]), min_size=3, max_size=3))
        own["held-out text"] = TextLosses(examples="x", predictions=[2, 3, 4], losses=losses)
    if draw(st.booleans()):
        values = draw(st.lists(st.sampled_from([0.1, 0.5, 0.9]), min_size=2, max_size=2))
        own["squad"] = SeedScores(metric="f1", values=dict(zip("12", values, strict=True)))
    if draw(st.booleans()):
        said = draw(st.lists(st.sampled_from(["0", "1"]), min_size=6, max_size=6))
        own["sst2"] = TaskPredictions(
            metric="accuracy", examples="x", labels=SIX, predictions={"1": said}
        )
    return own


def spoiled(own: Mapping[str, Result], value: float) -> dict[str, Result]:
    """The results with one figure of each task of numbers set to `value`."""
    broken = dict(own)
    for task, result in own.items():
        if isinstance(result, TextLosses):
            broken[task] = TextLosses(
                examples="x", predictions=result.predictions, losses=[value, *result.losses[1:]]
            )
        elif isinstance(result, SeedScores):
            broken[task] = SeedScores(metric="f1", values={**result.values, "1": value})
    return broken


FEW: dict[str, Any] = {"resamples": 50}
PROMOTE_IF = st.sampled_from(["better", "not_worse"])


@given(results(), results(), st.sampled_from(NOT_FINITE), PROMOTE_IF)
@settings(max_examples=60, deadline=None)
def test_a_candidate_with_a_figure_that_is_not_finite_is_never_promoted(
    champion: dict[str, Result], candidate: dict[str, Result], value: float, promote_if: str
) -> None:
    broken = spoiled(candidate, value)
    for against in (champion, spoiled(champion, value)):
        decision = decide(against, broken, promote_if=promote_if, **FEW)  # type: ignore[arg-type]
        verdicts = {found.task: found.verdict for found in decision.comparisons}
        numbers = [task for task in verdicts if task != "sst2"]
        assert [verdicts[task] for task in numbers] == [WORSE] * len(numbers)
        assert not (numbers and decision.promoted)
        assert "nan" not in decision.why
        assert "inf" not in decision.why.replace("not finite", "")


@given(results(), results(), st.sampled_from(NOT_FINITE))
@settings(max_examples=60, deadline=None)
def test_a_champion_with_a_figure_that_is_not_finite_loses_that_task(
    champion: dict[str, Result], candidate: dict[str, Result], value: float
) -> None:
    decision = decide(spoiled(champion, value), candidate, **FEW)
    for found in decision.comparisons:
        if found.task != "sst2":
            assert found.verdict == BETTER
            assert "the champion's figures are not finite" in decision.why


@given(
    results(),
    st.dictionaries(st.sampled_from("abcde"), results(), min_size=1),
    st.dictionaries(st.sampled_from("abcde"), st.sampled_from(NOT_FINITE)),
    st.dictionaries(st.sampled_from("abcde"), st.sampled_from([1.0, 2.0])),
    PROMOTE_IF,
    st.randoms(),
)
@settings(max_examples=60, deadline=None)
def test_no_order_of_candidates_or_tasks_changes_the_choice_and_a_finite_one_comes_first(
    champion: dict[str, Result],
    candidates: dict[str, dict[str, Result]],
    odd: dict[str, float],
    written: dict[str, float],
    promote_if: str,
    random: Any,
) -> None:
    for name in odd.keys() & candidates.keys():
        candidates[name] = spoiled(candidates[name], odd[name])

    def shuffled(mapping: Mapping[str, Any]) -> dict[str, Any]:
        return {key: mapping[key] for key in random.sample(list(mapping), len(mapping))}

    best, decision = choose(champion, candidates, written, promote_if=promote_if, **FEW)
    other = {name: shuffled(own) for name, own in shuffled(candidates).items()}
    again, repeated = choose(shuffled(champion), other, written, promote_if=promote_if, **FEW)
    assert (again, repeated.promoted) == (best, decision.promoted)
    every = {
        name: decide(champion, own, candidates=len(candidates), promote_if=promote_if, **FEW)  # type: ignore[arg-type]
        for name, own in candidates.items()
    }
    assert decision.promoted == any(own.promoted for own in every.values())
    for name, own in every.items():
        verdicts = {found.verdict for found in own.comparisons}
        assert own.promoted == (
            bool(verdicts)
            and WORSE not in verdicts
            and (BETTER in verdicts or promote_if == "not_worse")
        )
        if own.promoted == decision.promoted and own.strength == decision.strength:
            assert (written.get(best, 0.0), best) >= (written.get(name, 0.0), name)


def test_one_example_or_one_group_of_rows_says_nothing_about_noise() -> None:
    def single(said: str) -> dict[str, Result]:
        return {
            "sst2": TaskPredictions(
                metric="accuracy", examples="x", labels=["1"], predictions={"1": [said]}
            ),
            "text": TextLosses(examples="x", predictions=[5, 0], losses=[9.0 - int(said), 0.0]),
        }

    decision = decide(single("0"), single("1"))
    assert not decision.promoted
    assert decision.left_out.keys() == {"sst2", "text"}
