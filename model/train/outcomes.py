"""What became of each step: its update was applied, or it was skipped for a gradient that is not finite.

That is known when the gradient's norm has arrived from the device, which may be a step later. `Progress` counts it, and the figures of
applied steps go into the window of the next log line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from model.train.arriving import Arriving
from model.train.distributed import World
from model.train.engines.loss_scale import LEAST
from model.train.interfaces import Source, Training
from model.train.metrics import SKIPPED, Window
from model.train.rollback import RollBack
from model.train.state import Progress
from model.train.telling import Telling
from pipeline.core.pulse import Phase


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step whose gradient's norm may still be on its way from the device.

    Attributes:
        step: its number, from 1.
        figures: see `model.train.scoring.Scoring`; this rank's sums.
        counts: the step's, over all ranks.
        scale: of the loss, with precision fp16.
    """

    step: int
    norm: Arriving
    figures: Tensor
    counts: Tensor
    scale: Arriving | None


class Outcomes:
    """The steps that are not read yet, and the sums of those that are.

    Attributes:
        window: since the last log line.
    """

    def __init__(self, training: Training, world: World, telling: Telling) -> None:
        self._training, self._world, self._telling = training, world, telling
        self._unread: list[Stepped] = []
        self.begin()

    def begin(self) -> None:
        """A new window."""
        self.window = Window(self._training.trained.names, self._world.device)

    def restore(self, progress: Progress) -> None:
        """The window of a checkpoint, and nothing unread."""
        self._unread.clear()
        self.begin()
        self.window.restore(progress.window, self._world)

    def add(self, step: Stepped) -> None:
        self._unread.append(step)

    def read(self, progress: Progress, source: Source, *, keep: int) -> None:
        """Read the norms of all steps but the last `keep`: a GPU is asked of a step while it already runs the next.

        Raises:
            RollBack: too many in a row were skipped.
        """
        while len(self._unread) > keep:
            item = self._unread.pop(0)
            with self._world.pulse.within(Phase.EXCHANGE):  # a device may wait for the other ranks' here
                norm = item.norm.value
            if math.isfinite(norm):
                progress.updates += 1
                progress.skipped_in_a_row = 0
                self.window.add(item.figures, item.counts, norm)
            elif item.scale is not None and item.scale.value > LEAST:
                self._overflowed(progress, item.step, item.scale.value)
            else:
                self._skipped(progress, source, item.step)

    def _overflowed(self, progress: Progress, step: int, scale: float) -> None:
        """Count a step without an update whose scaled gradient was too large for fp16: no fault of its rows, and no alarm."""
        progress.skipped += 1
        progress.overflows += 1
        self._telling.note(
            f"step {step} was skipped: its gradient overflows fp16 at a loss scale of {scale:,.0f}, which is halved"
        )

    def _skipped(self, progress: Progress, source: Source, step: int) -> None:
        """Count a step without an update, say what it was made of, and go back after too many in a row."""
        progress.skipped += 1
        progress.skipped_in_a_row += 1
        self._telling.skips.add({"step": step, **source.rows(step - 1)})
        self._telling.note(f"step {step} was skipped: its gradient is not finite (rows in {SKIPPED})", "warning")
        if progress.skipped_in_a_row >= self._training.recipe.max_skipped:
            raise RollBack(step, progress.skipped_in_a_row)
