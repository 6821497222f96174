"""What is due at which step: patience is asked at every step, so it must not go through all steps
again.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cloze.core.stages.execution import Execution
from cloze.model.train.loop.triggers import StepTriggers
from cloze.model.train.spec.interfaces import START
from cloze.model.train.spec.progress import TrainerState
from cloze.model.train.spec.schedules import ScheduleProgress, StepDuration, TimeBudget


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
