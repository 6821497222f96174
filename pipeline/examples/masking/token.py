"""BERT's rule: every set of tokens of the wanted size is equally likely (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

import numpy as np

from pipeline import keys as random
from pipeline.examples.masking.draw import I64, Candidates, Selection
from pipeline.keys import U64


def choose_tokens(candidates: Candidates, budget: I64, keys: U64) -> Selection:
    """A uniform subset of each row's candidates, of exactly the budget's size, for each (row, copy).

    By Floyd's algorithm (Bentley and Floyd, "A sample of brilliance", 1987), all rows and copies at once: it draws as
    many random numbers as tokens are wanted, where ranking all tokens by a random number takes seven times as many,
    and a sort.
    """
    rows, copies = keys.shape
    counts = candidates.counts
    width = max(1, int(counts.max(initial=1)))
    order = np.argsort(-budget, kind="stable")  # rows that want more steps come first: each step works on a prefix
    ranked_keys, ranked_counts, ranked_budget = keys[order], counts[order], budget[order]
    cells = (order[:, None] * copies + np.arange(copies)) * width
    chosen = np.zeros(rows * copies * width, np.bool_)
    steps = int(budget.max(initial=0))
    by_step = random.mix(np.arange(steps))
    active = np.searchsorted(-ranked_budget, -np.arange(steps), side="left")  # rows whose budget is above the step
    for step, live in enumerate(active.tolist()):
        last = (ranked_counts[:live] - ranked_budget[:live] + step)[:, None]
        drawn = random.below(random.mix(ranked_keys[:live] ^ by_step[step]), last + 1).astype(np.int64)
        taken = chosen[cells[:live] + drawn]
        chosen[cells[:live] + np.where(taken, last, drawn)] = True
    selected = np.repeat(budget, copies)
    shift = np.repeat(candidates.offsets[:-1], copies) - np.arange(rows * copies) * width
    return Selection(index=np.flatnonzero(chosen) + np.repeat(shift, selected), counts=selected)
