"""Which tokens a model must guess, and what it sees instead: one pure function for stored and for fresh masks.

`config.py` says what can be set, `candidates.py` what a rule takes and gives, `draw.py` holds `draw_masks`. A rule says which
tokens are chosen. It is one file here and one line in the table: a function `(Candidates, budget [R, K], keys [R, K]) -> Selection`.
"""

from __future__ import annotations

# Name -> `module:function`; named, not imported, so that configs can check a name without loading numpy.
RULES = {
    "token": "pipeline.dataset.masking.token:choose_tokens",
    "whole-word": "pipeline.dataset.masking.ngram:choose_words",
    "n-gram": "pipeline.dataset.masking.ngram:choose_ngrams",
    "span": "pipeline.dataset.masking.span:choose_spans",
    "none": "pipeline.dataset.masking.none:choose_none",
}

# How many tokens a row's mask has: see `pipeline.dataset.masking.config.MaskConfig`.
BUDGETS = ("bert", "probabilistic", "ceil", "round")

# Where random replacements come from: see the same.
RANDOM_FROM = ("vocabulary", "pieces", "corpus")


def default_cap(budget: str, rate: float, length: int) -> int:
    """The most predictions of a row where nothing else is asked for: it grows with the length, and never cuts the rate.

    bert: round(rate · length) + 1, which is BERT's 20 at 128 (google-research/bert README); at 512 it is 78, where a cap
    left at 20 would mask under 4 %. round: int((rate + .005) · length), which is 19 at 128
    (google-research/electra, configure_pretraining.py). RoBERTa (probabilistic) and SpanBERT (ceil) have none: the length.
    """
    caps = {"bert": round(rate * length) + 1, "round": int((rate + 0.005) * length)}
    return max(1, min(length, caps.get(budget, length)))
