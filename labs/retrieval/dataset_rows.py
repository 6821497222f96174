"""The masking rule salient, and the recipe with it. No numpy: part of the dataset's config."""

from __future__ import annotations

from cloze.pipeline.dataset.masking.registry import MaskingRule, RuleMarks
from cloze.pipeline.dataset.recipes import Values

SALIENT = MaskingRule(
    "cloze.labs.retrieval.salient:choose_salient",
    marks=RuleMarks(
        "cloze.labs.retrieval.salient:marker",
        "entities",
        "Artifact of `cloze tag-corpus`, for --recipe realm.",
    ),
)


def realm() -> Values:
    """REALM: one named entity or date of each row masked, whole, always by [MASK].

    Guu et al. 2020, section 3.4 and appendix B (salient span masking). Rows are of one document.
    """
    return {
        "pairing": "document",
        "masking": "salient",
        "mask_share": 1.0,
        "random_share": 0.0,
        "short_seq_prob": 0.0,
    }
