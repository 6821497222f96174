"""What examples are like: the part of the dataset stage's config that says how text becomes rows and masks. Light."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator, model_validator

from pipeline.errors import did_you_mean
from pipeline.examples.masking import RULES
from pipeline.examples.pairs import PAIRINGS
from pipeline.examples.recipes import RECIPES
from pipeline.stage import StageConfig

if TYPE_CHECKING:
    from pipeline.examples.masking.draw import MaskConfig
    from pipeline.examples.pairs.segments import PairConfig


class ExampleConfig(StageConfig):
    """What the examples are like. Fields from `pairing` on follow from the recipe unless they are set.

    Attributes:
        recipe: a name in `pipeline.examples.recipes.RECIPES`.
        length: the most tokens of a row, special tokens included.
        copies: masks stored with each row (K).
        seed: of all random numbers.
        lowercase: overrides what the tokenizer's files say about case.
        pairing: how documents are cut, and what the two segments of a row are.
        masking: the rule that chooses tokens.
        mask_rate: the share of tokens, special ones counted, that are predicted.
        max_predictions: the most predictions a row has; round(mask_rate · length) + 1 unless it is set, which is
            BERT's 20 at length 128, and never the trap of 20 at 512.
        mask_share: the share of predicted tokens replaced by [MASK].
        random_share: the share replaced by a random piece.
        short_seq_prob: the share of documents cut into shorter rows.
    """

    recipe: str = "bert"
    length: int = 128
    copies: int = Field(default=10, ge=1, le=10_000)
    seed: int = Field(default=0, ge=0, lt=1 << 64)
    lowercase: bool | None = None
    pairing: str = "nsp"
    masking: str = "token"
    mask_rate: float = Field(default=0.15, gt=0, lt=1)
    max_predictions: int = Field(default=20, ge=1)
    mask_share: float = Field(default=0.8, ge=0, le=1)
    random_share: float = Field(default=0.1, ge=0, le=1)
    short_seq_prob: float = Field(default=0.1, ge=0, le=1)

    @model_validator(mode="before")
    @classmethod
    def _follow_recipe(cls, values: Any) -> Any:
        """Fill what is not set from the recipe; what is wrong is told by its own field."""
        if not isinstance(values, dict):
            return values
        given = {name: value for name, value in values.items() if value is not None}
        recipe = RECIPES.get(given.get("recipe", "bert"))
        filled = {**(asdict(recipe()) if recipe else {}), **given}
        with contextlib.suppress(TypeError, ValueError):
            scaled = round(float(filled.get("mask_rate", 0.15)) * int(filled.get("length", 128))) + 1
            filled.setdefault("max_predictions", max(1, scaled))
        return filled

    @field_validator("length")
    @classmethod
    def _fits(cls, length: int) -> int:
        if not 8 <= length <= 65_535:
            raise ValueError("a row has 8 to 65,535 tokens; BERT uses 128 and 512")
        return length

    @field_validator("recipe", "pairing", "masking")
    @classmethod
    def _known(cls, name: str, info: Any) -> str:
        tables: dict[str, Collection[str]] = {
            "recipe": RECIPES,
            "pairing": PAIRINGS,
            "masking": RULES,
        }
        if name not in tables[info.field_name]:
            raise ValueError(f"unknown {info.field_name}; {did_you_mean(name, tables[info.field_name])}")
        return name

    @field_validator("random_share")
    @classmethod
    def _leaves_room(cls, share: float, info: Any) -> float:
        masked = info.data.get("mask_share", 0.0)
        if masked + share > 1 + 1e-9:
            raise ValueError(f"more than what mask_share ({masked}) leaves; lower one of them")
        return share

    def pair_config(self) -> PairConfig:
        """What the pairing is told."""
        from pipeline.examples.pairs.segments import PairConfig

        return PairConfig(length=self.length, short_seq_prob=self.short_seq_prob, seed=self.seed)

    def mask_config(self) -> MaskConfig:
        """What masking is told."""
        from pipeline.examples.masking.draw import MaskConfig

        return MaskConfig(
            rule=self.masking,
            rate=self.mask_rate,
            max_predictions=self.max_predictions,
            mask_share=self.mask_share,
            random_share=self.random_share,
        )
