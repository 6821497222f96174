"""SpanBERT's rule: spans of whole words, their lengths from a clipped geometric distribution (Joshi et al. 2020, section 3.1).

Spans never touch: at least one word that is not chosen, or a special token, stands between two of them. So a span is exactly
a maximal run of consecutive positions in a mask, its boundary tokens are the ones right before and right behind it, neither is
masked, and the span boundary objective needs nothing beyond the positions (SpanBERT's masking.py merges spans that touch, which
comes to the same, but blurs their lengths).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from pipeline.core.options import Options
from pipeline.dataset.masking.table import LONGEST_UNIT

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pipeline.core.ragged import I64
    from pipeline.core.random_keys import U64
    from pipeline.dataset.masking.candidates import Candidates, Selection


class SpanOptions(Options):
    """What can be set of the rule `span`."""

    span_p: float = Field(default=0.2, gt=0, lt=1)
    """Of the rule `span`: p of the geometric distribution that the number of words in a span is drawn from (SpanBERT: .2)."""
    max_span: int = Field(default=10, ge=1, le=LONGEST_UNIT)
    """Of the rule `span`: the most words of a span (SpanBERT: 10; the mean is then 3.8)."""


def choose_spans(candidates: Candidates, budget: I64, keys: U64) -> Selection:
    """Spans until the budget is used up: a length, then places for it until one is free. A span is replaced as one.

    As in SpanBERT's masking.py a place is the word of a uniformly drawn token, and the span that uses up the budget is
    shortened; here by whole words, so that none is split. A length that finds no place stays, and other places are tried,
    so that lengths keep their distribution in rows that fill up; after 16 places it is halved. The budget is met exactly,
    unless no word that is short enough is left that touches no span.
    """
    from pipeline.dataset.masking.placing import Units, place

    options = candidates.config
    assert isinstance(options, SpanOptions)
    weights = length_weights(options.span_p, options.max_span)
    units = Units(weights=weights, by_token=True, persistent=True, apart=True, as_one=True)
    return place(candidates, budget, keys, units)


def length_weights(p: float, longest: int) -> npt.NDArray[np.float64]:
    """The probabilities of spans of 1 to `longest` words, but for a common factor: p (1 - p)^(n - 1).

    With .2 and 10 the mean is 3.8 (Joshi et al. 2020, section 3.1 and figure 2).
    """
    import numpy as np

    return np.asarray(p * (1 - p) ** np.arange(longest), np.float64)
