"""Examples of a left-to-right language model."""

from __future__ import annotations

from pipeline.dataset.recipes.recipe import Recipe


def lm() -> Recipe:
    """A left-to-right language model's rows: text that runs on, documents joined by [SEP], nothing masked.

    Devlin et al. 2019, table 5, "LTR". Every row has one copy with no positions in it.
    """
    return Recipe(pairing="full", masking="none", short_seq_prob=0.0, copies=1)
