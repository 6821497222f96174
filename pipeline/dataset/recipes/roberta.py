"""RoBERTa's examples: text that runs on, no pair task."""

from __future__ import annotations

from dataclasses import replace

from pipeline.dataset.recipes.recipe import Recipe


def roberta() -> Recipe:
    """RoBERTa: FULL-SENTENCES, no pair task, ten static masks (or dynamic ones), random words that are never special.

    Liu et al. 2019, sections 4.1 and 4.2; fairseq, mask_tokens_dataset.py (the number of masks is .15 · length, rounded up or down
    at random). Rows are `<s> … </s>`, with one more `</s>` between documents.
    """
    return Recipe(
        pairing="full",
        masking="token",
        budget="probabilistic",
        random_from="pieces",
        short_seq_prob=0.0,
    )


def roberta_doc() -> Recipe:
    """RoBERTa with DOC-SENTENCES: no row crosses the end of a document (Liu et al. 2019, section 4.2 and table 2)."""
    return replace(roberta(), pairing="document")
