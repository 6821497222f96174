"""What is due at which step: a log line, a measurement, a checkpoint, the end.

All of it but the clock of checkpoints follows from the config, the step's number and what `Progress` holds, so a training that is resumed
decides alike.
"""

from __future__ import annotations

import time
from dataclasses import replace

from model.train.config import TENTHS
from model.train.interfaces import Milestones, Training
from model.train.pace import Moment
from model.train.state import Progress
from pipeline.core.execution import Execution

LINES = 100  # log lines of a training that does not know its number of steps


class Due:
    """Steps are counted from 1 here.

    Attributes:
        last: the number of the last step, as soon as it is known.
    """

    def __init__(self, training: Training, execution: Execution) -> None:
        self._training, self._execution = training, execution
        self.last: int | None = training.recipe.pace.steps
        self._minutes = 60.0 * execution.checkpoint_minutes
        self._save_from = time.monotonic() + self._minutes

    def course(self, step: int) -> Moment:
        """The moment of a step, of a training that is counted in steps."""
        return self._training.recipe.pace.moment(step - 1, 0, 0, (0, 0))

    def over(self, progress: Progress) -> bool:
        """Whether the last step is done, or patience has ended: that follows from the steps and the best one alone."""
        if self.last is not None and progress.step >= self.last:
            return True
        patience, best = self._training.patience, progress.best
        if patience is None or best is None:
            return False
        since = range(int(best["step"]) + 1, progress.step + 1)
        return sum(self.measures(step, self.course(step)) for step in since) >= patience

    def logs(self, step: int, moment: Moment) -> bool:
        """Whether it gets a log line: the first, the last and the measured ones always do."""
        every = self._training.log_every
        due = moment.ends(LINES) if every is None else step % every == 0
        return due or moment.last or step == self._training.begun.step + 1 or self.measures(step, moment)

    def measures(self, step: int, moment: Moment) -> bool:
        """Whether it is measured."""
        measure = self._training.measure
        wanted = moment.last or step in self._training.milestones  # a checkpoint that is kept has its figures
        return measure is not None and (wanted or measure.due(step, moment))

    def keeps(self, progress: Progress) -> bool:
        """Whether the step that is done gets a checkpoint, by its number, or as the best so far; the last one always does."""
        step, every = progress.step, self._execution.checkpoint_every
        due = bool(every and step % every == 0) and not progress.skipped_in_a_row  # no pruning of the one to go back to
        kept = step in self._training.milestones or step in progress.kept
        return (step != self.last and (kept or due)) or self.best(progress) == step

    def closes(self, step: int, moment: Moment) -> bool:
        """Whether it is the end of one of the last tenths of this training, whose checkpoints stay."""
        pace, begun = self._training.recipe.pace, self._training.begun.step
        if pace.steps is not None:  # the course may be longer than this training
            moment = Moment(done=step - 1 - begun, size=1, whole=pace.steps - begun, last=step == pace.steps)
        late = moment.share >= (TENTHS + 1 - self._training.keep_last) / TENTHS
        return late and moment.ends(TENTHS) and not moment.last

    def best(self, progress: Progress) -> int | None:
        """The best step so far, where its checkpoint is to be kept."""
        return int(progress.best["step"]) if self._training.keep_best and progress.best else None

    def kept(self, progress: Progress) -> Milestones:
        """The steps whose checkpoints stay."""
        kept, best = self._training.milestones, self.best(progress)
        return replace(kept, steps=kept.steps | {*progress.kept} | (set() if best is None else {best}))

    def clock(self) -> bool:
        """Whether the clock says that a checkpoint is due, where no number of steps does. Asking sets it anew."""
        if self._execution.checkpoint_every is not None or time.monotonic() < self._save_from:
            return False
        self._save_from = time.monotonic() + self._minutes
        return True
