"""The masking rules: the choice of the tokens to predict in a row.

    token           BERT: every token set of the target size is equally likely (Devlin et al. 2019,
                    section 3.1)
    whole-word      BERT's whole-word masking: all tokens of a word together
    n-gram          ALBERT: 1 to `max_ngram` words together
    span            SpanBERT: spans of whole words, with lengths from a clipped geometric
                    distribution (Joshi et al. 2020, section 3.1)
    none            for left-to-right models, which predict every token from those before it

Spans never touch: a word that is not chosen, or a special token, separates them. So a span is a
maximal run of consecutive positions in a mask, and its boundary tokens are its neighbours. The span
boundary objective needs only the positions. SpanBERT's masking.py merges spans that touch, which is
equivalent but blurs their lengths.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cloze.core import random_keys as random
from cloze.core.ragged import I64
from cloze.core.random_keys import U64
from cloze.pipeline.dataset.masking.candidates import MaskCandidates, MaskSelection
from cloze.pipeline.dataset.masking.registry import NgramOptions, SpanOptions
from cloze.pipeline.dataset.masking.unit_placement import UnitSpec, mask_units


def choose_tokens(candidates: MaskCandidates, budget: I64, keys: U64) -> MaskSelection:
    """Choose a uniform subset of each row's candidates, of the budget's size, for each (row, copy).

    Uses Floyd's algorithm (Bentley and Floyd, "A sample of brilliance", 1987) on all rows and
    copies at once. It draws one random number per chosen token; ranking all tokens needs seven
    times as many, and a sort.
    """
    rows, copies = keys.shape
    width = max(1, int(candidates.counts.max(initial=1)))
    budgets = budget.reshape(-1)
    # masks with more steps first, so that each step works on a prefix
    order = np.argsort(-budgets, kind="stable")
    ranked_keys = keys.reshape(-1)[order]
    ranked_counts = np.repeat(candidates.counts, copies)[order]
    # Floyd's j in the first step; plus one in each further step
    ranked_first = ranked_counts - budgets[order]
    cells = order * width
    selected = np.zeros(rows * copies * width, np.bool_)
    steps = int(budgets.max(initial=0))
    by_step = random.splitmix64(np.arange(steps))
    # masks whose budget exceeds the step
    active = np.searchsorted(-budgets[order], -np.arange(steps), side="left")
    for step, active_count in enumerate(active.tolist()):
        last = ranked_first[:active_count] + step
        # Floyd: draw from the first `last` + 1 candidates. One that is taken already yields `last`,
        # which no earlier step could take. So every subset is equally likely.
        drawn = random.randint_below(
            random.splitmix64(ranked_keys[:active_count] ^ by_step[step]), last + 1
        ).astype(np.int64)
        mask_cells = cells[:active_count]
        is_selected = selected[mask_cells + drawn]
        selected[mask_cells + np.where(is_selected, last, drawn)] = True
    shift = np.repeat(candidates.offsets[:-1], copies) - np.arange(rows * copies) * width
    return MaskSelection(index=np.flatnonzero(selected) + np.repeat(shift, budgets), counts=budgets)


def choose_words(candidates: MaskCandidates, budget: I64, keys: U64) -> MaskSelection:
    """Choose words in random order until the budget is used up; skip words that exceed the rest.

    google-research/bert, create_masked_lm_predictions with do_whole_word_mask. The budget is the
    maximum, and is missed only if no word is short enough. Each token gets its own replacement.
    """
    return _choose(candidates, budget, keys, 1)


def choose_ngrams(candidates: MaskCandidates, budget: I64, keys: U64) -> MaskSelection:
    """Choose n-grams at words in random order: 1 to `max_ngram` words, n with probability ~ 1/n.

    google-research/albert, create_masked_lm_predictions. An n-gram longer than the rest of the
    budget is shortened by whole words, or skipped if its first word is too long; one that meets a
    chosen word is skipped. Here an n-gram also ends with its segment, and never crosses [SEP]. Each
    token gets its own replacement.
    """
    assert isinstance(candidates.config, NgramOptions)
    return _choose(candidates, budget, keys, candidates.config.max_ngram)


def _choose(candidates: MaskCandidates, budget: I64, keys: U64, longest: int) -> MaskSelection:
    # A word drawn again draws the same n, so it fails or is taken already: equivalent to a shuffle.
    return mask_units(candidates, budget, keys, UnitSpec(weights=1 / np.arange(1, longest + 1)))


def choose_spans(candidates: MaskCandidates, budget: I64, keys: U64) -> MaskSelection:
    """Choose spans until the budget is used up: a length, then places until one is free.

    As in SpanBERT's masking.py, a place is the word of a uniformly drawn token, and the last span
    is shortened to the budget; here by whole words. A length without a free place is kept for other
    places, so that lengths keep their distribution in rows that fill up; after 16 places it is
    halved. The budget is met exactly, unless no short enough word is left that touches no span. A
    span is replaced as one.
    """
    options = candidates.config
    assert isinstance(options, SpanOptions)
    weights = length_weights(options.span_p, options.max_span)
    return mask_units(candidates, budget, keys, UnitSpec(weights=weights, are_spans=True))


def length_weights(p: float, longest: int) -> npt.NDArray[np.float64]:
    """Return the relative probabilities of spans of 1 to `longest` words: p (1 - p)^(n - 1).

    The mean for .2 and 10 is 3.8 (Joshi et al. 2020, section 3.1 and figure 2).
    """
    return np.asarray(p * (1 - p) ** np.arange(longest), np.float64)


def choose_none(candidates: MaskCandidates, budget: I64, keys: U64) -> MaskSelection:
    """Choose no token, in every copy of every row."""
    return MaskSelection(index=np.zeros(0, np.int64), counts=np.zeros(keys.size, np.int64))
