"""The masking rules by name, and the words that a config may use beside them. Light: configs read it.

A rule says which tokens are chosen. It is one file and one line here: a function `(Candidates, budget [R, K], keys [R, K]) -> Selection`,
and what can be set of it as a subclass of `pipeline.core.options.Options` in the same file.
"""

from __future__ import annotations

from typing import NamedTuple


class MaskingRule(NamedTuple):
    """A row of the table."""

    function: str  # `module:function`
    options: str | None = None  # `module:class`
    highest_rate: float = 1.0  # the share of tokens that it can choose in every row


RULES = {
    "token": MaskingRule("pipeline.dataset.masking.token:choose_tokens"),
    "whole-word": MaskingRule("pipeline.dataset.masking.ngram:choose_words"),
    "n-gram": MaskingRule("pipeline.dataset.masking.ngram:choose_ngrams", "pipeline.dataset.masking.ngram:NgramOptions"),
    "span": MaskingRule(
        "pipeline.dataset.masking.span:choose_spans", "pipeline.dataset.masking.span:SpanOptions", highest_rate=0.5
    ),
    "none": MaskingRule("pipeline.dataset.masking.none:choose_none"),
}

# How many tokens a row's mask has: see `pipeline.dataset.masking.config.MaskConfig`.
BUDGETS = ("bert", "probabilistic", "ceil", "round")

# Where random replacements come from: see the same.
RANDOM_FROM = ("vocabulary", "pieces", "corpus")

LONGEST_UNIT = 60  # words in an n-gram or a span: with a neighbour on either side they lie in one number of 64 bits


def default_cap(budget: str, rate: float, length: int) -> int:
    """The most predictions of a row where nothing else is asked for: it grows with the length, and never cuts the rate.

    bert: round(rate · length) + 1, which is BERT's 20 at 128 (google-research/bert README); at 512 it is 78, where a cap
    left at 20 would mask under 4 %. round: int((rate + .005) · length), which is 19 at 128
    (google-research/electra, configure_pretraining.py). RoBERTa (probabilistic) and SpanBERT (ceil) have none: the length.
    """
    caps = {"bert": round(rate * length) + 1, "round": int((rate + 0.005) * length)}
    return max(1, min(length, caps.get(budget, length)))
