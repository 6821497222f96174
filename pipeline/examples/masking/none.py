"""No masks: rows for left-to-right models, which guess every token from those before it."""

from __future__ import annotations

import numpy as np

from pipeline.examples.masking.candidates import Candidates, Selection
from pipeline.examples.ragged import I64
from pipeline.keys import U64


def choose_none(candidates: Candidates, budget: I64, keys: U64) -> Selection:
    """Nothing, in every copy of every row."""
    return Selection(index=np.zeros(0, np.int64), counts=np.zeros(keys.size, np.int64))
