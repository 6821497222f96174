"""Step results: a step was applied, or skipped for a non-finite gradient.

The result is known when the gradient norm arrives from the device, possibly one step later.
`TrainerState` counts it, and the metrics of applied steps go into the window of the next log line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from cloze.core.processes import RankPhase
from cloze.model.train.distributed import World
from cloze.model.train.engines.device_scalars import LEAST, AsyncScalar
from cloze.model.train.loop.interfaces import BatchSource
from cloze.model.train.loop.rollback import RollbackRequired
from cloze.model.train.loop.train_spec import TrainSpec
from cloze.model.train.monitor.metrics import SKIPPED, MetricWindow
from cloze.model.train.monitor.training_logger import TrainingReporter
from cloze.model.train.resume.state import TrainerState


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A step whose gradient norm may not have arrived from the device yet.

    Attributes:
        step: number of the step, from 1.
        figures: this rank's sums, see `cloze.model.train.evaluate.scoring.PretrainModule`.
        counts: counts of the step over all ranks.
        scale: loss scale, with precision fp16.
    """

    step: int
    norm: AsyncScalar
    figures: Tensor
    counts: Tensor
    scale: AsyncScalar | None


class StepResults:
    """The unread steps, and the sums of the steps that were read.

    Attributes:
        window: metrics since the last log line.
    """

    def __init__(self, training: TrainSpec, world: World, reporter: TrainingReporter) -> None:
        self._training, self._world, self._reporter = training, world, reporter
        self._unread: list[PendingStep] = []
        self.reset_window()

    def reset_window(self) -> None:
        """Start a new window."""
        self.window = MetricWindow(self._training.trained.names, self._world.device)

    def restore(self, progress: TrainerState) -> None:
        """Restore the window of a checkpoint and drop unread steps."""
        self._unread.clear()
        self.reset_window()
        self.window.restore(progress.window, self._world)

    def add(self, step: PendingStep) -> None:
        self._unread.append(step)

    def process(self, progress: TrainerState, source: BatchSource, *, keep: int) -> None:
        """Read the norms of all steps except the last `keep`, which a GPU still computes.

        Raises:
            RollbackRequired: too many consecutive steps were skipped.
        """
        while len(self._unread) > keep:
            item = self._unread.pop(0)
            # Reading the norm may wait for a collective on the device.
            with self._world.pulse.phase(RankPhase.EXCHANGE):
                norm = item.norm.value
            if math.isfinite(norm):
                progress.updates += 1
                progress.skipped_in_a_row = 0
                self.window.add(item.figures, item.counts, norm)
            elif item.scale is not None and item.scale.value > LEAST:
                self._overflowed(progress, item.step, item.scale.value)
            else:
                self._skipped(progress, source, item.step)

    def _overflowed(self, progress: TrainerState, step: int, scale: float) -> None:
        """Count a skipped step whose scaled gradient overflowed fp16, which is normal."""
        progress.skipped += 1
        progress.overflows += 1
        self._reporter.message(
            f"step {step} was skipped: its gradient overflows fp16 at a loss scale of {scale:,.0f},"
            f" which is halved"
        )

    def _skipped(self, progress: TrainerState, source: BatchSource, step: int) -> None:
        """Count a skipped step, log its rows, and request a rollback after too many in a row."""
        progress.skipped += 1
        progress.skipped_in_a_row += 1
        self._reporter.skipped_steps.add({"step": step, **source.row_ids(step - 1)})
        self._reporter.message(
            f"step {step} was skipped: its gradient is not finite (rows in {SKIPPED})", "warning"
        )
        if progress.skipped_in_a_row >= self._training.recipe.max_skipped:
            raise RollbackRequired(step, progress.skipped_in_a_row)
