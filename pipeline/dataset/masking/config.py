"""What is masked, and how: the part of a dataset's config that a shard carries, so that fresh masks are drawn like the stored ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import DataError, did_you_mean
from pipeline.core.ragged import I64
from pipeline.dataset.masking import BUDGETS, RANDOM_FROM, RULES

MAX_UNIT = 60  # words in an n-gram or span: their window lies in one 64-bit number, with a neighbour on either side


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskConfig:
    """What share is masked, and how.

    Attributes:
        rule: a name in `RULES`.
        rate: the share of a row's tokens that are predicted; of which tokens, says `budget`.
        budget: how many tokens that makes in a row of `length` tokens, of which `text` are not special.
            bert: max(1, round(rate · length)), halves to even (google-research/bert, create_masked_lm_predictions).
            round: the same, as google-research/electra's pretrain_helpers.mask; only its usual cap is another.
            probabilistic: int(rate · length + u), u uniform in [0, 1) for each copy (fairseq, mask_tokens_dataset.py).
            ceil: ceil(rate · text) (SpanBERT, masking.py).
        max_predictions: the most predictions a row may have (BERT's max_predictions_per_seq).
        mask_share: the share of chosen tokens replaced by [MASK].
        random_share: the share replaced by a random piece; the rest stay as they are.
        random_from: where random pieces come from.
            vocabulary: every id is equally likely, special and unused ones too (BERT, ALBERT).
            pieces: every id but the special ones (RoBERTa).
            corpus: as often as a piece stands in the training text (SpanBERT's `np.random.choice(tokens)`).
        max_ngram: the most words that the rule `n-gram` takes together (ALBERT: 3).
        span_p: of the rule `span`: the geometric distribution of words in a span (SpanBERT: .2).
        max_span: the most words in a span (SpanBERT: 10; the mean is then 3.8).
    """

    rule: str = "token"
    rate: float = 0.15
    budget: str = "bert"
    max_predictions: int = 20
    mask_share: float = 0.8
    random_share: float = 0.1
    random_from: str = "vocabulary"
    max_ngram: int = 3
    span_p: float = 0.2
    max_span: int = 10

    def __post_init__(self) -> None:
        for name, value, known in (
            ("masking rule", self.rule, RULES),
            ("budget", self.budget, BUDGETS),
            ("random_from", self.random_from, RANDOM_FROM),
        ):
            if value not in known:
                raise ValueError(f"unknown {name} {value!r}; {did_you_mean(value, known)}")

    def as_dict(self) -> dict[str, Any]:
        """What a shard's schema says of its masks; `from_dict` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MaskConfig:
        """From what `as_dict` gave. `DataError` if it names what this program does not know."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise DataError(
                f"the dataset's masks were drawn with {unknown[0]!r}, which this program does not know; use a newer one"
            )
        try:
            return cls(**values)
        except ValueError as error:
            raise DataError(f"the dataset's masks cannot be drawn again: {error}") from error

    def wanted(self, lengths: npt.ArrayLike, text: npt.ArrayLike, u: npt.ArrayLike = 0.5) -> I64:
        """How many tokens rows should have masked, before the cap: int64 of the broadcast shape.

        Args:
            lengths: tokens of the rows, special ones counted.
            text: tokens of the rows that are not special.
            u: for `probabilistic`: uniform numbers in [0, 1).
        """
        lengths, text, u = np.asarray(lengths), np.asarray(text), np.asarray(u, np.float64)
        if self.budget == "probabilistic":
            return np.asarray(np.floor(self.rate * lengths + u), np.int64)
        if self.budget == "ceil":
            return np.asarray(np.ceil(text * self.rate + 0.0 * u), np.int64)
        return np.asarray(np.maximum(np.rint(lengths * self.rate + 0.0 * u), 1), np.int64)

    def predictions(self, lengths: npt.ArrayLike, text: npt.ArrayLike | None = None, u: npt.ArrayLike = 0.5) -> I64:
        """`wanted` under the cap. For BERT: min(cap, max(1, round(rate · length))): 30 tokens give 4, 110 give 16."""
        return np.minimum(self.wanted(lengths, lengths if text is None else text, u), self.max_predictions)
