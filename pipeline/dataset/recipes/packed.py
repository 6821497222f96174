"""Rows of several documents, for unpadded training."""

from __future__ import annotations

from pipeline.dataset.recipes.recipe import Recipe


def packed() -> Recipe:
    """Several documents a row, each `[CLS] … [SEP]`, with boundaries for attention that stays within a document.

    For unpadded training (Portes et al. 2023, MosaicBERT, section 3.2; Warner et al. 2024, ModernBERT, section 2.1.2), which both masked
    30 % of the tokens. Best-fit packing (Ding et al. 2024), nothing dropped.
    """
    return Recipe(pairing="packed", masking="token", mask_rate=0.3, random_from="pieces", short_seq_prob=0.0)
