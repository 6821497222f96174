"""BERT's rule: every set of tokens of the wanted size is equally likely (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

import numpy as np

from pipeline.core import random_keys as random
from pipeline.core.ragged import I64
from pipeline.core.random_keys import U64
from pipeline.dataset.masking.candidates import Candidates, Selection


def choose_tokens(candidates: Candidates, budget: I64, keys: U64) -> Selection:
    """A uniform subset of each row's candidates, of exactly the budget's size, for each (row, copy).

    By Floyd's algorithm (Bentley and Floyd, "A sample of brilliance", 1987), all rows and copies at once: it draws as
    many random numbers as tokens are wanted, where ranking all tokens by a random number takes seven times as many,
    and a sort.
    """
    rows, copies = keys.shape
    width = max(1, int(candidates.counts.max(initial=1)))
    wanted = budget.reshape(-1)
    order = np.argsort(-wanted, kind="stable")  # masks that want more steps come first: each step works on a prefix
    ranked_keys = keys.reshape(-1)[order]
    ranked_counts = np.repeat(candidates.counts, copies)[order]
    ranked_first = ranked_counts - wanted[order]  # Floyd's j in the first step; one more in each further step
    cells = order * width
    chosen = np.zeros(rows * copies * width, np.bool_)
    steps = int(wanted.max(initial=0))
    by_step = random.mix(np.arange(steps))
    active = np.searchsorted(-wanted[order], -np.arange(steps), side="left")  # masks whose budget is above the step
    for step, live in enumerate(active.tolist()):
        last = ranked_first[:live] + step
        drawn = random.below(random.mix(ranked_keys[:live] ^ by_step[step]), last + 1).astype(np.int64)
        here = cells[:live]
        taken = chosen[here + drawn]
        chosen[here + np.where(taken, last, drawn)] = True
    shift = np.repeat(candidates.offsets[:-1], copies) - np.arange(rows * copies) * width
    return Selection(index=np.flatnonzero(chosen) + np.repeat(shift, wanted), counts=wanted)
