"""What examples are like: the part of the dataset stage's config that says how text becomes rows and masks. Light."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator, model_validator

from pipeline.core.config import StageConfig
from pipeline.core.errors import did_you_mean
from pipeline.dataset.masking import BUDGETS, RANDOM_FROM, RULES, default_cap
from pipeline.dataset.pairs import PACKINGS, PAIRINGS
from pipeline.dataset.recipes import RECIPES

if TYPE_CHECKING:
    from pipeline.dataset.masking.config import MaskConfig
    from pipeline.dataset.pairs.segments import PairConfig

TABLES: dict[str, Collection[str]] = {
    "recipe": RECIPES,
    "pairing": PAIRINGS,
    "packing": PACKINGS,
    "masking": RULES,
    "budget": BUDGETS,
    "random_from": RANDOM_FROM,
}
LONGEST_UNIT = 50  # words in an n-gram or a span


class ExampleConfig(StageConfig):
    """What the examples are like. Fields from `copies` on follow from the recipe unless they are set; any mixture goes.

    Attributes:
        recipe: a name in `pipeline.dataset.recipes.RECIPES`.
        length: the most tokens of a row, special tokens included.
        seed: of all random numbers.
        lowercase: overrides what the tokenizer's files say about case.
        copies: masks stored with each row (K).
        pairing: how documents are cut, and what the two segments of a row are: a name in `pipeline.dataset.pairs.PAIRINGS`.
        packing: of the pairing `packed`: best-fit, which cuts few documents, or in-order, which keeps neighbours together.
        random_next_prob: of the pairings `nsp` and `segment-pair`: how often B is a random text.
        swap_prob: of the pairing `sop`: how often the segments are swapped.
        single_segment_prob: of the pairing `electra`: how often a row is one segment.
        short_seq_prob: the share of documents cut into shorter rows.
        masking: the rule that chooses tokens: token, whole-word, n-gram, span, or none for left-to-right models.
        mask_rate: the share of tokens that are predicted.
        budget: how the rate becomes a number of tokens: bert, probabilistic, ceil or round; see
            `pipeline.dataset.masking.config.MaskConfig`.
        max_predictions: the most predictions a row has. Unless it is set it grows with rate and length and cuts nothing
            (`pipeline.dataset.masking.default_cap`): 20 at length 128 for BERT, and never the trap of 20 at 512.
        mask_share: the share of predicted tokens replaced by [MASK].
        random_share: the share replaced by a random piece; the rest stay as they are.
        random_from: where random pieces come from: vocabulary (every id), pieces (all but special ones) or corpus (as
            frequent as in the training text).
        max_ngram: of the rule `n-gram`: the most words taken together.
        span_p: of the rule `span`: the geometric distribution of words in a span.
        max_span: of the rule `span`: the most words of one.
    """

    recipe: str = "bert"
    length: int = 128
    seed: int = Field(default=0, ge=0, lt=1 << 64)
    lowercase: bool | None = None
    copies: int = Field(default=10, ge=1, le=10_000)
    pairing: str = "nsp"
    packing: str = "best-fit"
    random_next_prob: float = Field(default=0.5, ge=0, le=1)
    swap_prob: float = Field(default=0.5, ge=0, le=1)
    single_segment_prob: float = Field(default=0.1, ge=0, le=1)
    short_seq_prob: float = Field(default=0.1, ge=0, le=1)
    masking: str = "token"
    mask_rate: float = Field(default=0.15, gt=0, lt=1)
    budget: str = "bert"
    max_predictions: int = Field(default=20, ge=1)
    mask_share: float = Field(default=0.8, ge=0, le=1)
    random_share: float = Field(default=0.1, ge=0, le=1)
    random_from: str = "vocabulary"
    max_ngram: int = Field(default=3, ge=1, le=LONGEST_UNIT)
    span_p: float = Field(default=0.2, gt=0, lt=1)
    max_span: int = Field(default=10, ge=1, le=LONGEST_UNIT)

    @model_validator(mode="before")
    @classmethod
    def _follow_recipe(cls, values: Any) -> Any:
        """Fill what is not set from the recipe; what is wrong is told by its own field."""
        if not isinstance(values, dict):
            return values
        given = {name: value for name, value in values.items() if value is not None}
        name = given.get("recipe", "bert")
        recipe = RECIPES.get(name) if isinstance(name, str) else None
        filled = {**(asdict(recipe()) if recipe else {}), **given}
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            rate, length = float(filled.get("mask_rate", 0.15)), int(filled.get("length", 128))
            filled.setdefault("max_predictions", default_cap(str(filled.get("budget", "bert")), rate, length))
        return filled

    @field_validator("length")
    @classmethod
    def _fits(cls, length: int) -> int:
        if not 8 <= length <= 65_535:
            raise ValueError("a row has 8 to 65,535 tokens; BERT uses 128 and 512")
        return length

    @field_validator(*TABLES)
    @classmethod
    def _known(cls, name: str, info: Any) -> str:
        if name not in TABLES[info.field_name]:
            raise ValueError(f"unknown {info.field_name}; {did_you_mean(name, TABLES[info.field_name])}")
        return name

    @field_validator("random_share")
    @classmethod
    def _leaves_room(cls, share: float, info: Any) -> float:
        masked = info.data.get("mask_share", 0.0)
        if masked + share > 1 + 1e-9:
            raise ValueError(f"more than what mask_share ({masked}) leaves; lower one of them")
        return share

    def warnings(self) -> list[str]:
        """What is allowed and probably not meant, each a sentence with the remedy."""
        found = []
        masks = self.masking != "none"
        fair = default_cap(self.budget, self.mask_rate, self.length)
        wanted = round(self.mask_rate * self.length)
        if masks and self.max_predictions < wanted:
            found.append(
                f"max_predictions ({self.max_predictions}) cuts mask_rate: rows of {self.length} tokens have"
                f" {self.max_predictions / self.length:.1%} masked, not {self.mask_rate:.1%}; leave it out, or set it to {fair}"
            )
        if self.masking == "span" and self.mask_rate > 0.5:
            found.append(
                f"mask_rate ({self.mask_rate:g}) is more than spans that do not touch can fill in every row; use 0.5 or less"
            )
        if not masks and self.copies > 1:
            found.append(f"copies ({self.copies}) are all alike and empty where masking is none; use 1")
        return found

    def pair_config(self) -> PairConfig:
        """What the pairing is told."""
        from pipeline.dataset.pairs.segments import PairConfig

        return PairConfig(
            length=self.length,
            short_seq_prob=self.short_seq_prob,
            seed=self.seed,
            random_prob=self.random_next_prob,
            swap_prob=self.swap_prob,
            single_prob=self.single_segment_prob,
            packing=self.packing,
        )

    def mask_config(self) -> MaskConfig:
        """What masking is told."""
        from pipeline.dataset.masking.config import MaskConfig

        return MaskConfig(
            rule=self.masking,
            rate=self.mask_rate,
            budget=self.budget,
            max_predictions=self.max_predictions,
            mask_share=self.mask_share,
            random_share=self.random_share,
            random_from=self.random_from,
            max_ngram=self.max_ngram,
            span_p=self.span_p,
            max_span=self.max_span,
        )
