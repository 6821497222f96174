"""Whole words, alone or several together: BERT's whole-word masking and ALBERT's n-grams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from pipeline.core.options import Options
from pipeline.dataset.masking.table import LONGEST_UNIT

if TYPE_CHECKING:
    from pipeline.core.ragged import I64
    from pipeline.core.random_keys import U64
    from pipeline.dataset.masking.candidates import Candidates, Selection


class NgramOptions(Options):
    """What can be set of the rule `n-gram`."""

    max_ngram: int = Field(default=3, ge=1, le=LONGEST_UNIT)
    """Of the rule `n-gram`: the most words taken together (ALBERT: 3)."""


def choose_words(candidates: Candidates, budget: I64, keys: U64) -> Selection:
    """Words in random order until the budget is used up; one that is longer than what is left is passed over.

    google-research/bert, create_masked_lm_predictions with do_whole_word_mask. So the budget is the most that is chosen, and
    it falls short only where no word is short enough. Each piece gets a replacement of its own, as there.
    """
    return _choose(candidates, budget, keys, 1)


def choose_ngrams(candidates: Candidates, budget: I64, keys: U64) -> Selection:
    """Each word in random order may open an n-gram: 1 to `max_ngram` words, the number n with probability in proportion to 1/n.

    google-research/albert, create_masked_lm_predictions: an n-gram longer than what is left of the budget is shortened by
    whole words, or passed over when its first word is too long; one that meets a chosen word is passed over. Here it also
    ends where its segment ends, and never reaches across [SEP]. Each piece gets a replacement of its own, as there.
    """
    assert isinstance(candidates.config, NgramOptions)
    return _choose(candidates, budget, keys, candidates.config.max_ngram)


def _choose(candidates: Candidates, budget: I64, keys: U64, longest: int) -> Selection:
    import numpy as np

    from pipeline.dataset.masking.placing import Units, place

    # A word that comes up again draws the same n as before, so it fails or is taken already: the same as a shuffle.
    units = Units(weights=1 / np.arange(1, longest + 1), by_token=False, persistent=False, apart=False, as_one=False)
    return place(candidates, budget, keys, units)
