"""The batch size schedule: a pure function of the step, not saved. No torch, no numpy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchSizeSchedule:
    """A batch size that is constant or grows.

    Devlin et al., 2019, keep it constant; You et al., 2019, and Brown et al., 2020, let it grow.

    Attributes:
        last: final samples per step.
        first: samples of the first step, a divisor of `last`; 0: constant `last`.
        steps: steps over which the batch grows, in `last / first` equal levels.
    """

    last: int
    first: int = 0
    steps: int = 0

    def size(self, step: int) -> int:
        """Return the samples of step `step`, from 0."""
        return self.samples_before(step + 1) - self.samples_before(step)

    def samples_before(self, step: int) -> int:
        """Return the samples of all steps before step `step`, from 0."""
        growing, found = min(step, self.steps), max(0, step - self.steps) * self.last
        levels = self.last // self.first if self.first else 0
        for level in range(levels):
            begins, ends = (-(-number * self.steps // levels) for number in (level, level + 1))
            if begins >= growing:
                break
            found += (level + 1) * self.first * (min(ends, growing) - begins)
        return found
