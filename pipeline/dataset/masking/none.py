"""No masks: rows for left-to-right models, which guess every token from those before it."""

from __future__ import annotations

import numpy as np

from pipeline.core.ragged import I64
from pipeline.core.random_keys import U64
from pipeline.dataset.masking.candidates import Candidates, Selection


def choose_none(candidates: Candidates, budget: I64, keys: U64) -> Selection:
    """Nothing, in every copy of every row."""
    return Selection(index=np.zeros(0, np.int64), counts=np.zeros(keys.size, np.int64))
