"""ALBERT's examples: the order of two segments, and masks of several words."""

from __future__ import annotations

from pipeline.dataset.recipes.recipe import Recipe


def albert() -> Recipe:
    """ALBERT: sentence order prediction, half of it swapped, and masks of 1 to 3 words with p in proportion to 1/n.

    Lan et al. 2020, section 3.1 and equation 1; google-research/albert, create_pretraining_data.py (dupe_factor 40). Its 20
    predictions a row at length 512 would mask under 4 %: here the cap grows with the length.
    """
    return Recipe(pairing="sop", masking="n-gram", copies=40)
