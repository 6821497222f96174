"""SpanBERT's examples: one segment, masked by spans."""

from __future__ import annotations

from pipeline.dataset.recipes.recipe import Recipe


def spanbert() -> Recipe:
    """SpanBERT: one segment, spans of 1 to 10 words (geometric, p = .2, mean 3.8), each replaced as one.

    Joshi et al. 2020, section 3; facebookresearch/SpanBERT, masking.py: ceil(.15 · length) without special tokens, and random
    pieces as frequent as they are in the text. Boundary targets follow from the positions: see
    `pipeline.dataset.masking.span`. Masks were dynamic there. short_seq_prob is its code's default, .1; the paper says
    (section 4.2) that its own models were trained without short sequences: 0 repeats them.
    """
    return Recipe(pairing="document", masking="span", budget="ceil", random_from="corpus")
