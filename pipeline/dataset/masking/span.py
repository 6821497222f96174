"""SpanBERT's rule: spans of whole words, their lengths from a clipped geometric distribution (Joshi et al. 2020, section 3.1).

Spans never touch: at least one word that is not chosen, or a special token, stands between two of them. So a span is exactly
a maximal run of consecutive positions in a mask, its boundary tokens are the ones right before and right behind it, neither is
masked, and the span boundary objective needs nothing beyond the positions (SpanBERT's masking.py merges spans that touch, which
comes to the same, but blurs their lengths).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.core.ragged import I64
from pipeline.core.random_keys import U64
from pipeline.dataset.masking.candidates import Candidates, Selection
from pipeline.dataset.masking.placing import Units, place


def choose_spans(candidates: Candidates, budget: I64, keys: U64) -> Selection:
    """Spans until the budget is used up: a length, then places for it until one is free. A span is replaced as one.

    As in SpanBERT's masking.py a place is the word of a uniformly drawn token, and the span that uses up the budget is
    shortened; here by whole words, so that none is split. A length that finds no place stays, and other places are tried,
    so that lengths keep their distribution in rows that fill up; after 16 places it is halved. The budget is met exactly,
    unless no word that is short enough is left that touches no span.
    """
    weights = length_weights(candidates.config.span_p, candidates.config.max_span)
    units = Units(weights=weights, by_token=True, persistent=True, apart=True, as_one=True)
    return place(candidates, budget, keys, units)


def length_weights(p: float, longest: int) -> npt.NDArray[np.float64]:
    """The probabilities of spans of 1 to `longest` words, but for a common factor: p (1 - p)^(n - 1).

    With .2 and 10 the mean is 3.8 (Joshi et al. 2020, section 3.1 and figure 2).
    """
    return np.asarray(p * (1 - p) ** np.arange(longest), np.float64)
