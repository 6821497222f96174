"""What is due at which step: patience is asked at every step, so it must not go through all steps
again.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core.stages.execution import Execution
from cloze.model.train.loop import triggers as triggers_module
from cloze.model.train.loop.triggers import StepTriggers
from cloze.model.train.spec.interfaces import START
from cloze.model.train.spec.progress import TrainerState
from cloze.model.train.spec.schedules import (
    ScheduleProgress,
    StepDuration,
    TimeBudget,
    TokenDuration,
)


class EveryTenth:
    """A measure that counts how often it is asked."""

    asked = 0

    def should_evaluate(self, step: int, moment: ScheduleProgress) -> bool:
        self.asked += 1
        return step % 10 == 0


def due_of(measure: EveryTenth, patience: int, steps: int) -> StepTriggers:
    training: Any = SimpleNamespace(
        hyperparameters=SimpleNamespace(duration=StepDuration(steps=steps, span=steps)),
        checkpoints=SimpleNamespace(milestones=frozenset()),
        evaluator=measure,
        patience=patience,
        data=SimpleNamespace(start_position=START),
    )
    return StepTriggers(training, Execution())


def test_patience_is_asked_in_constant_time() -> None:
    measure, steps = EveryTenth(), 3000
    should_evaluate = due_of(measure, 1000, steps)
    for step in range(7, steps):
        assert not should_evaluate.should_stop(TrainerState(step=step, best={"step": 7.0}))
    assert measure.asked <= 2 * steps


def test_a_time_budget_keeps_the_last_tenths_of_any_number_of_steps() -> None:
    """Its steps' sizes are fractions, whose sums are not exact."""
    first, keep = 3, 3
    budget = TimeBudget(seconds=100, cold=1, closing=lambda seconds: 0.0)
    training: Any = SimpleNamespace(
        hyperparameters=SimpleNamespace(duration=budget),
        checkpoints=SimpleNamespace(keep_for_merge=keep),
        data=SimpleNamespace(start_position=START),
    )
    triggers = StepTriggers(training, Execution())
    for steps in (10, 15, 60, 123, 165):
        positions = (
            (step, budget.progress_at(step, budget=[first, first + steps]))
            for step in range(first, first + steps)
        )
        kept = [step for step, position in positions if triggers.ends_tenth(step + 1, position)]
        assert len(kept) == keep - 1, steps


def test_training_ends_after_so_many_evaluations_without_a_better_one() -> None:
    should_evaluate = due_of(EveryTenth(), 3, 1000)
    over = [
        step
        for step in range(20, 100)
        if should_evaluate.should_stop(TrainerState(step=step, best={"step": 20.0}))
    ]
    assert over[0] == 50
    assert not should_evaluate.should_stop(
        TrainerState(step=51, best={"step": 50.0})
    )  # a better one since
    assert should_evaluate.should_stop(TrainerState(step=80, best={"step": 50.0}))
    again = due_of(EveryTenth(), 3, 1000)  # resumed
    assert not again.should_stop(TrainerState(step=79, best={"step": 50.0}))
    assert again.should_stop(TrainerState(step=80, best={"step": 50.0}))


def triggers_of(
    *,
    steps: int = 12,
    start: int = 0,
    interval: int | None = 4,
    measure: EveryTenth | None = None,
    checkpoint_every: int | None = None,
    **checkpoints: Any,
) -> StepTriggers:
    policy = {
        "milestones": frozenset({5}),
        "milestone_tokens": {},
        "keep_best": False,
        "keep_for_merge": 1,
        **checkpoints,
    }
    training: Any = SimpleNamespace(
        hyperparameters=SimpleNamespace(duration=StepDuration(steps=steps, span=steps)),
        checkpoints=SimpleNamespace(**policy),
        evaluator=measure,
        patience=None,
        logging=SimpleNamespace(interval=interval),
        data=SimpleNamespace(start_position=replace(START, step=start)),
    )
    return StepTriggers(training, Execution(checkpoint_every=checkpoint_every))


def logged(triggers: StepTriggers, steps: range) -> list[int]:
    return [step for step in steps if triggers.should_log(step, triggers.progress_at(step))]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 2500), st.integers(0, 40), st.none() | st.integers(1, 3000), st.booleans(),
    st.frozensets(st.integers(1, 2500), max_size=3),
)  # fmt: skip
def test_a_step_without_a_line_is_not_asked(
    steps: int, start: int, interval: int | None, measured: bool, milestones: frozenset[int]
) -> None:
    """Who asks at the steps that `next_line` names alone finds every line, and asks seldom."""
    triggers = triggers_of(
        steps=start + steps, start=start, interval=interval,
        measure=EveryTenth() if measured else None, milestones=milestones,
    )  # fmt: skip
    numbers, asked, found = range(start + 1, start + steps + 1), 0, list[int]()
    following = 0
    for step in numbers:
        if step >= following:
            asked, following = asked + 1, triggers.next_line(step)
            found += logged(triggers, range(step, step + 1))
    assert found == logged(triggers, numbers)
    assert asked <= len(found) + steps // triggers_module.AHEAD + 1


def test_steps_whose_lines_tokens_decide_are_all_asked() -> None:
    triggers = triggers_of()
    duration = TokenDuration(first=0, tokens=100)
    triggers._training.hyperparameters.duration = duration  # type: ignore[misc]
    assert [triggers.next_line(step) for step in range(5)] == [1, 2, 3, 4, 5]


def saved(triggers: StepTriggers, **state: Any) -> list[int]:
    return [step for step in range(1, 13) if triggers.should_save(TrainerState(step=step, **state))]


def test_lines_come_at_the_interval_first_last_and_where_something_is_measured() -> None:
    assert logged(triggers_of(start=2), range(3, 13)) == [3, 4, 8, 12]
    measured = triggers_of(start=2, steps=11, measure=EveryTenth())
    assert logged(measured, range(3, 12)) == [3, 4, 5, 8, 10, 11]  # 5 is a milestone
    assert len(logged(triggers_of(steps=250, interval=None), range(1, 251))) == 101  # and the first


def test_milestones_and_the_last_step_are_measured_if_anything_is() -> None:
    for measure, expected in ((None, []), (EveryTenth(), [5, 10, 12])):
        triggers = triggers_of(measure=measure)
        found = [
            step
            for step in range(1, 13)
            if triggers.should_evaluate(step, triggers.progress_at(step))
        ]
        assert found == expected


def test_checkpoints_come_at_the_interval_and_where_one_is_kept_and_none_for_the_last_step() -> (
    None
):
    every = triggers_of(checkpoint_every=3)
    assert saved(every, kept=[7, 12]) == [3, 5, 6, 7, 9]
    assert saved(every, kept=[7], skipped_in_a_row=1) == [5, 7], "it could prune what to go back to"
    assert saved(triggers_of(), kept=[7]) == [5, 7]
    best = triggers_of(keep_best=True)
    assert saved(best, best={"step": 8.0}) == [5, 8]
    assert saved(best, best={"step": 12.0}) == [5, 12]
    assert saved(best) == saved(triggers_of(), best={"step": 8.0}) == [5]


def test_what_is_kept_for_ever_is_milestones_what_was_kept_and_the_best() -> None:
    state = TrainerState(kept=[7], best={"step": 8.0})
    assert triggers_of().retained_steps(state) == {5, 7}
    assert triggers_of(keep_best=True).retained_steps(state) == {5, 7, 8}
    assert triggers_of(keep_best=True).retained_steps(TrainerState()) == {5}


def test_the_step_that_reaches_so_many_words_is_kept_and_no_other() -> None:
    triggers = triggers_of(milestone_tokens={"1k": 1000, "2k": 2000})
    position = triggers.progress_at(1)
    reached = [
        tokens
        for tokens in range(970, 2040, 10)
        if triggers.should_keep(TrainerState(step=1, tokens=tokens), 10, position)
    ]
    assert reached == [1000, 2000]
    assert triggers.should_keep(TrainerState(step=1, tokens=2500), 2000, position)


def test_the_last_tenths_are_those_of_this_training() -> None:
    for keep, expected in ((1, []), (2, [28]), (3, [26, 28]), (10, [*range(12, 30, 2)])):
        triggers = triggers_of(steps=30, start=10, keep_for_merge=keep)
        found = [
            step for step in range(11, 31) if triggers.ends_tenth(step, triggers.progress_at(step))
        ]
        assert found == expected


def test_a_checkpoint_is_due_by_time_unless_it_comes_by_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, seconds = [50.0], triggers_module.SAVE_SECONDS
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    by_time, by_steps = triggers_of(), triggers_of(checkpoint_every=3)
    told = []
    for after in (0.0, seconds - 1, seconds, seconds + 1, 2 * seconds - 1, 2 * seconds + 5):
        now[0] = 50.0 + after
        told.append(by_time.save_timer_expired())
        assert not by_steps.save_timer_expired()
    assert told == [False, False, True, False, False, True]


@pytest.mark.parametrize("first", [0, 7])
def test_training_ends_after_so_many_evaluations_of_which_none_is_finite(first: int) -> None:
    triggers = due_of(EveryTenth(), 3, 1000)
    over = [
        step
        for step in range(first, 100)
        if triggers.should_stop(TrainerState(step=step, best=None))
    ]
    assert over[0] == 30
    assert not triggers.should_stop(TrainerState(step=40, best={"step": 40.0})), "a finite one"
    assert not due_of(EveryTenth(), 3, 1000).should_stop(TrainerState(step=29, best=None))
    assert due_of(EveryTenth(), 3, 1000).should_stop(TrainerState(step=90, best=None)), "resumed"
