"""Fewer of the stored masks as training goes on: a pure function of the step, so that nothing of it is saved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from model.data.rows import MaskedRows
from pipeline.core import random_keys
from pipeline.core.ragged import I64

_THINNING = 8  # random stream, beside the sampler's and the trainer's


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinning:
    """Fewer and fewer of the stored masks: at the end of its steps the share `last` of them, in a straight line from all.

    A random part of a random choice is a random choice, so a dataset of 30 % masks trains at 15 % as one that was made so; what is left
    out stands in the row as it is (Ankner et al., "Dynamic Masking Rate Schedules for MLM Pretraining", 2023).

    Attributes:
        last: in (0, 1).
        first: the first step of the line.
        steps: how many it has.
        seed: of the choice.
    """

    last: float
    first: int
    steps: int
    seed: int

    def kept(self, step: int) -> float:
        """The share of the masks that step `step` (from 0) trains on."""
        return 1.0 - (1.0 - self.last) * min(1.0, max(0.0, (step - self.first) / self.steps))

    def thin(self, rows: MaskedRows, samples: I64, step: int) -> MaskedRows:
        """The rows with that share of their masks.

        Args:
            samples: int64 [B], the rows' numbers over the whole run.
        """
        each = np.repeat(np.arange(len(samples)), rows.counts)
        keys = random_keys.derive(self.seed, _THINNING, samples)[each]
        keep = random_keys.uniform(random_keys.derive(keys, rows.positions)) < self.kept(step)
        counts = np.bincount(each[keep], minlength=len(samples)).astype(np.int64)
        return rows.with_masks(rows.positions[keep], rows.replacements[keep], counts)
