"""Triggers: when to log, evaluate, save and stop.

Except for the checkpoint timer, all follow from the config, the step and `TrainerState`, so a
resumed training decides identically.
"""

from __future__ import annotations

import time

from cloze.core.stages.execution import TrainingOptions
from cloze.model.train.config import TENTHS
from cloze.model.train.spec.progress import TrainerState
from cloze.model.train.spec.schedules import ROUNDING, ScheduleProgress
from cloze.model.train.spec.train_spec import TrainSpec

SAVE_SECONDS = 600.0  # between checkpoints, without `checkpoint_every`
AHEAD = 1000  # steps among which the next log line is looked for
LINES = 100  # log lines of a training with an unknown number of steps


class StepTriggers:
    """The triggers of a training. Steps are counted from 1."""

    def __init__(self, training: TrainSpec, execution: TrainingOptions) -> None:
        self._training, self._execution = training, execution
        self._save_from = time.monotonic() + SAVE_SECONDS
        self._counted = (0, 0, 0)  # best step, last step counted, evaluations between them

    def progress_at(self, step: int) -> ScheduleProgress:
        """Return the schedule progress of a step, for a training with a known number of steps."""
        return self._training.hyperparameters.duration.progress_at(step - 1, 0, 0, ())

    def last(self, progress: TrainerState) -> int | None:
        """Return the number of the last step, or None while it is unknown."""
        duration = self._training.hyperparameters.duration
        return duration.last(progress.step, progress.tokens, progress.budget)

    def should_stop(self, progress: TrainerState) -> bool:
        """Return True after the last step, or when patience is exhausted."""
        last_step = self.last(progress)
        if last_step is not None and progress.step >= last_step:
            return True
        patience, best = self._training.patience, progress.best
        if patience is None:
            return False
        best_step = int(best["step"]) if best else 0  # without a best, because none was finite
        counted_best, last_counted, evaluations = self._counted
        if counted_best != best_step:
            counted_best, last_counted, evaluations = best_step, best_step, 0
        new_steps = range(last_counted + 1, progress.step + 1)  # one step, except after a resume
        evaluations += sum(self.should_evaluate(step, self.progress_at(step)) for step in new_steps)
        self._counted = counted_best, progress.step, evaluations
        return evaluations >= patience

    def should_log(self, step: int, schedule_progress: ScheduleProgress) -> bool:
        """Return True for steps with a log line: by interval, first, last, or evaluated."""
        interval = self._training.logging.interval
        at_interval = schedule_progress.crosses(LINES) if interval is None else step % interval == 0
        return (
            at_interval
            or schedule_progress.last
            or step == self._training.data.start_position.step + 1
            or self.should_evaluate(step, schedule_progress)
        )

    def next_line(self, step: int) -> int:
        """Return the next step after `step` that may get a log line; none before it is asked."""
        last = self._training.hyperparameters.duration.steps
        if last is None:  # what tokens or seconds decide is known at the step itself
            return step + 1
        # A few steps at a time: a line may be as far away as the training is long.
        end = min(last, step + AHEAD)
        lines = (n for n in range(step + 1, end) if self.should_log(n, self.progress_at(n)))
        return next(lines, max(end, step + 1))

    def should_evaluate(self, step: int, schedule_progress: ScheduleProgress) -> bool:
        """Return True if the step is evaluated."""
        evaluator = self._training.evaluator
        # Milestone checkpoints have metrics, too.
        required = schedule_progress.last or step in self._training.checkpoints.milestones
        return evaluator is not None and (
            required or evaluator.should_evaluate(step, schedule_progress)
        )

    def should_save(self, progress: TrainerState) -> bool:
        """Return True if the current step gets a checkpoint by number, or as the best so far."""
        step, interval = progress.step, self._execution.checkpoint_every
        # During skipped steps a save could prune the checkpoint for a rollback.
        at_interval = bool(interval and step % interval == 0) and not progress.skipped_in_a_row
        keep = step in self._training.checkpoints.milestones or step in progress.kept
        return (step != self.last(progress) and (keep or at_interval)) or self.best_step(
            progress
        ) == step

    def ends_tenth(self, step: int, schedule_progress: ScheduleProgress) -> bool:
        """Return True at the end of a last tenth of this training, whose checkpoint is kept."""
        duration = self._training.hyperparameters.duration
        start_position = self._training.data.start_position.step
        if duration.steps is not None:  # the schedule may be longer than this training
            schedule_progress = ScheduleProgress(
                done=step - 1 - start_position,
                step_size=1,
                total=duration.steps - start_position,
                last=step == duration.steps,
            )
        tenths = schedule_progress.fraction * TENTHS + ROUNDING
        in_last_tenths = tenths >= TENTHS + 1 - self._training.checkpoints.keep_for_merge
        return in_last_tenths and schedule_progress.crosses(TENTHS) and not schedule_progress.last

    def should_keep(
        self, progress: TrainerState, tokens: int, schedule_progress: ScheduleProgress
    ) -> bool:
        """Return True if the step's checkpoint is kept: it reaches words, or ends a last tenth.

        Args:
            tokens: real tokens of the step.
        """
        milestones = self._training.checkpoints.milestone_tokens.values()
        before = progress.tokens - tokens
        reaches_words = any(before < milestone <= progress.tokens for milestone in milestones)
        return reaches_words or self.ends_tenth(progress.step, schedule_progress)

    def best_step(self, progress: TrainerState) -> int | None:
        """Return the best step so far, if its checkpoint is kept; else None."""
        keeps_best = self._training.checkpoints.keep_best
        return int(progress.best["step"]) if keeps_best and progress.best else None

    def retained_steps(self, progress: TrainerState) -> frozenset[int]:
        """Return the steps whose checkpoints are never pruned."""
        milestones, best = self._training.checkpoints.milestones, self.best_step(progress)
        return milestones | {*progress.kept} | (set() if best is None else {best})

    def save_timer_expired(self) -> bool:
        """Return True if a checkpoint is due by time, and restart the timer.

        Never with `checkpoint_every`.
        """
        if self._execution.checkpoint_every is not None or time.monotonic() < self._save_from:
            return False
        self._save_from = time.monotonic() + SAVE_SECONDS
        return True
