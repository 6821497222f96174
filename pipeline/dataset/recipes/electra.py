"""ELECTRA's examples, for a generator to fill."""

from __future__ import annotations

from pipeline.dataset.recipes.recipe import Recipe


def electra() -> Recipe:
    """ELECTRA: one or two segments without a pair task, masks 85/15 without random words, for the generator to fill.

    Clark et al. 2020, section 3.1 and table 6; google-research/electra, build_pretraining_dataset.py (10 % single segments, 5 %
    short rows) and pretrain_helpers.py (round(.15 · length), 85 % [MASK], 15 % as they were). Masks were dynamic there.
    """
    return Recipe(
        pairing="electra",
        masking="token",
        budget="round",
        mask_share=0.85,
        random_share=0.0,
        short_seq_prob=0.05,
    )
