"""What is masked, and how: the part of a dataset's config that a shard carries, so that fresh masks are drawn like the stored ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError, field_validator

from pipeline.core.errors import DataError, did_you_mean
from pipeline.core.options import Options, composed
from pipeline.core.ragged import I64
from pipeline.core.registry import load
from pipeline.dataset.masking.table import BUDGETS, RANDOM_FROM, RULES

if TYPE_CHECKING:
    _RuleOptions = Options
else:
    _RuleOptions = composed("RuleOptions", Options, (rule.options for rule in RULES.values()))

# Options that every shard says, whatever its rule; of other rules' options only its own rule's are said.
ALWAYS_STORED = {"max_ngram", "span_p", "max_span"}


class MaskConfig(_RuleOptions):
    """What share is masked, and how; with the options of every rule."""

    rule: str = "token"
    """A name in `RULES`."""
    rate: float = 0.15
    """The share of a row's tokens that are predicted; of which tokens, says `budget`."""
    budget: str = "bert"
    """How many tokens that makes in a row of `length` tokens, of which `text` are not special.

    bert: max(1, round(rate · length)), halves to even (google-research/bert, create_masked_lm_predictions).
    round: the same, as google-research/electra's pretrain_helpers.mask; only its usual cap is another.
    probabilistic: int(rate · length + u), u uniform in [0, 1) for each copy (fairseq, mask_tokens_dataset.py).
    ceil: ceil(rate · text) (SpanBERT, masking.py).
    """
    max_predictions: int = 20
    """The most predictions a row may have (BERT's max_predictions_per_seq)."""
    mask_share: float = 0.8
    """The share of chosen tokens replaced by [MASK]."""
    random_share: float = 0.1
    """The share replaced by a random piece; the rest stay as they are."""
    random_from: str = "vocabulary"
    """Where random pieces come from.

    vocabulary: every id is equally likely, special and unused ones too (BERT, ALBERT).
    pieces: every id but the special ones (RoBERTa).
    corpus: as often as a piece stands in the training text (SpanBERT's `np.random.choice(tokens)`).
    """

    @field_validator("rule", "budget", "random_from")
    @classmethod
    def _known(cls, value: str, info: Any) -> str:
        name, known = {
            "rule": ("masking rule", tuple(RULES)),
            "budget": ("budget", BUDGETS),
            "random_from": ("random_from", RANDOM_FROM),
        }[info.field_name]
        if value not in known:
            raise ValueError(f"unknown {name} {value!r}; {did_you_mean(value, known)}")
        return value

    def as_dict(self) -> dict[str, Any]:
        """What a shard's schema says of its masks; `from_dict` reads it back."""
        options = RULES[self.rule].options
        own = set(load(options).model_fields) if options else set()
        stored = {*type(self).__annotations__, *ALWAYS_STORED, *own}
        return {name: value for name, value in self.model_dump().items() if name in stored}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MaskConfig:
        """From what `as_dict` gave.

        Raises:
            DataError: it names what this program does not know, or a value that no mask can be drawn with.
        """
        unknown = sorted(set(values) - set(cls.model_fields))
        if unknown:
            raise DataError(
                f"the dataset's masks were drawn with {unknown[0]!r}, which this program does not know; use a newer one"
            )
        try:
            return cls(**values)
        except ValidationError as error:
            fault = error.errors()[0]
            field, found = ".".join(map(str, fault["loc"])), fault["input"]
            message = str(fault["msg"]).removeprefix("Value error, ")
            raise DataError(
                f"the dataset's masks cannot be drawn again: {field} (found {found!r}): {message}; make the dataset again"
            ) from error

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
