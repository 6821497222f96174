"""The masking rules by name, and other options of masks. Light, because configs import it.

A rule chooses the tokens to predict. A new rule is a function in `rules.py` or a module of its own,
and one row here. The function is `(MaskCandidates, budget [R, K], keys [R, K]) -> MaskSelection`.
Options of its own are a subclass of `cloze.core.options.Options`: a class in this file, or in the
rule's module if that imports numpy only inside of functions.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from pydantic import Field, field_validator

from cloze.core.config import Values
from cloze.core.options import Options, known
from cloze.core.plugins import Table

# words in an n-gram or a span: with a neighbour on either side they fit in a 64-bit number
LONGEST_UNIT = 60


class NgramOptions(Options):
    """Options of the rule `n-gram`."""

    max_ngram: int = Field(default=3, ge=1, le=LONGEST_UNIT)
    """With masking n-gram: maximum number of words masked together (ALBERT: 3)."""


class SpanOptions(Options):
    """Options of the rule `span`."""

    span_p: float = Field(default=0.2, gt=0, lt=1)
    """With masking span: parameter p of the geometric distribution of span lengths in words
    (SpanBERT: 0.2)."""
    max_span: int = Field(default=10, ge=1, le=LONGEST_UNIT)
    """With masking span: maximum number of words in a span (SpanBERT: 10, mean 3.8)."""


class RuleMarks(NamedTuple):
    """Marks of tokens that a rule draws from, made of an artifact with a file per corpus shard."""

    function: str  # `module:function`: (artifact, corpus shard) -> `candidates.Marker`
    role: str  # input and stage of the artifact
    help: str  # of the input's option


class MaskingRule(NamedTuple):
    """A masking rule, a row of `RULES`."""

    function: str  # `module:function`
    options: type[Options] | str | None = None  # the class, or `module:class`
    highest_rate: float = 1.0  # maximum share of tokens that it can choose in every row
    marks: RuleMarks | None = None  # such a rule is never drawn anew: shards do not store them


_RULES = "cloze.pipeline.dataset.masking.rules"

_MASKING_RULES = {
    "token": MaskingRule(f"{_RULES}:choose_tokens"),
    "whole-word": MaskingRule(f"{_RULES}:choose_words"),
    "n-gram": MaskingRule(f"{_RULES}:choose_ngrams", NgramOptions),
    "span": MaskingRule(f"{_RULES}:choose_spans", SpanOptions, highest_rate=0.5),
    "none": MaskingRule(f"{_RULES}:choose_none"),
}
RULES: Table[MaskingRule] = Table("masking_rules", "masking rule", _MASKING_RULES, ("masking",))


def rule_marks() -> list[RuleMarks]:
    """Return the marks of all rules that have any."""
    return [rule.marks for rule in RULES.loaded().values() if rule.marks is not None]


# Number of masks in a row of `length` tokens, of which `text` are not special:
#   bert: max(1, round(rate · length)), halves to even (google-research/bert,
#       create_masked_lm_predictions).
#   round: the same, as google-research/electra, pretrain_helpers.mask; only the maximum differs.
#   probabilistic: int(rate · length + u), u uniform in [0, 1) for each copy (fairseq,
#       mask_tokens_dataset.py).
#   ceil: ceil(rate · text) (SpanBERT, masking.py).
ROUNDINGS = ("bert", "probabilistic", "ceil", "round")

# Distribution of random tokens:
#   vocabulary: uniform over all ids, special and unused ones included (BERT, ALBERT).
#   pieces: uniform over the ids that are not special (RoBERTa).
#   corpus: by frequency in the training text (SpanBERT: `np.random.choice(tokens)`).
RANDOM_FROM = ("vocabulary", "pieces", "corpus")


class MaskFields(Values):
    """The fields that the dataset's config and the masks of a shard share."""

    mask_rounding: Annotated[str, known(ROUNDINGS, "unknown mask_rounding")] = "bert"
    """Rounding of the mask rate to a number of tokens: bert and round (to nearest), probabilistic
    (stochastic) or ceil (up, without special tokens)."""
    max_predictions: int = Field(default=20, ge=1)
    """Maximum predictions per row. Unless set, it grows with --mask-rate and --length; only that of
    rounding round limits rows, of fewer than 100 tokens."""
    mask_share: float = Field(default=0.8, ge=0, le=1)
    """Share of predicted tokens that are replaced by [MASK]."""
    random_share: float = Field(default=0.1, ge=0, le=1)
    """Share of predicted tokens that are replaced by a random token; the rest stay unchanged."""
    random_from: Annotated[str, known(RANDOM_FROM, "unknown random_from")] = "vocabulary"
    """Distribution of random tokens: every id, every id but special tokens, or by frequency in the
    text."""

    @field_validator("random_share")
    @classmethod
    def _leaves_room(cls, share: float, info: Any) -> float:
        masked = info.data.get("mask_share", 0.0)
        if masked + share > 1 + 1e-9:
            raise ValueError(f"more than what mask_share ({masked}) leaves; lower one of them")
        return share


def default_cap(rounding: str, rate: float, length: int) -> int:
    """Return the default maximum of predictions per row; it grows with the length.

    bert: round(rate · length) + 1, which is BERT's 20 at 128 (google-research/bert README). At 512
    it is 78; a maximum of 20 would mask under 4 %. round: int((rate + .005) · length), which is
    19 at 128 (google-research/electra, configure_pretraining.py). RoBERTa (probabilistic) and
    SpanBERT (ceil) have no maximum: the length.
    """
    caps = {"bert": round(rate * length) + 1, "round": int((rate + 0.005) * length)}
    return max(1, min(length, caps.get(rounding, length)))
