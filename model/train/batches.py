"""How many samples each step has: a pure function of the step, so that nothing of it is saved. No torch, no numpy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Batches:
    """A batch that grows, or does not (Devlin et al. 2019 keep it; You et al. 2019 and Brown et al. 2020 let it grow).

    Attributes:
        last: samples of a step in the end.
        first: samples of the first step, of which `last` is a multiple; 0: as many as in the end.
        steps: over which it grows, in as many equal levels as `last` has of `first`.
    """

    last: int
    first: int = 0
    steps: int = 0

    def size(self, step: int) -> int:
        """Samples of step `step`, from 0."""
        return self.before(step + 1) - self.before(step)

    def before(self, step: int) -> int:
        """Samples of all steps before step `step`, from 0."""
        growing, found = min(step, self.steps), max(0, step - self.steps) * self.last
        levels = self.last // self.first if self.first else 0
        for level in range(levels):
            begins, ends = (-(-number * self.steps // levels) for number in (level, level + 1))
            if begins >= growing:
                break
            found += (level + 1) * self.first * (min(ends, growing) - begins)
        return found
