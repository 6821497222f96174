"""What examples are like: the part of the dataset stage's config that says how text becomes rows and masks. Light."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.core.config import StageConfig
from pipeline.core.errors import did_you_mean
from pipeline.core.options import composed
from pipeline.core.registry import load
from pipeline.dataset.masking.table import BUDGETS, RANDOM_FROM, RULES, default_cap
from pipeline.dataset.pairs.table import PAIRINGS
from pipeline.dataset.recipes.table import RECIPES

MOST_BINS = 64

if TYPE_CHECKING:
    from pipeline.dataset.masking.config import MaskConfig
    from pipeline.dataset.pairs.segments import PairConfig

    _OfRulesAndPairings = StageConfig
else:
    _OfRulesAndPairings = composed(
        "OptionsOfRulesAndPairings", StageConfig, (row.options for row in (*PAIRINGS.values(), *RULES.values()))
    )

TABLES: dict[str, Collection[str]] = {
    "recipe": RECIPES,
    "pairing": PAIRINGS,
    "masking": RULES,
    "budget": BUDGETS,
    "random_from": RANDOM_FROM,
}


class ExampleConfig(_OfRulesAndPairings):
    """What the examples are like; with the options of every pairing and every masking rule.

    What a recipe settles follows from it unless it is set; any mixture goes.
    """

    recipe: str = "bert"
    """The paper whose examples are made: a name in `pipeline.dataset.recipes.table.RECIPES`."""
    length: int = 128
    """The most tokens of a row, special tokens included."""
    seed: int = Field(default=0, ge=0, lt=1 << 64)
    """The seed of all random numbers."""
    lowercase: bool | None = None
    """Whether text is lowercased; overrides what the tokenizer's files say about case."""
    copies: int = Field(default=10, ge=1, le=10_000)
    """Masks stored with each row (K)."""
    pairing: str = "nsp"
    """How documents are cut, and what the two segments of a row are: a name in `pipeline.dataset.pairs.table.PAIRINGS`."""
    short_seq_prob: float = Field(default=0.1, ge=0, le=1)
    """The share of documents cut into shorter rows."""
    masking: str = "token"
    """The rule that chooses tokens: token, whole-word, n-gram, span, or none for left-to-right models; a name in `RULES`."""
    mask_rate: float = Field(default=0.15, gt=0, lt=1)
    """The share of tokens that are predicted."""
    budget: str = "bert"
    """How the rate becomes a number of tokens: bert, probabilistic, ceil or round."""
    max_predictions: int = Field(default=20, ge=1)
    """The most predictions a row has. Unless it is set it grows with rate and length and cuts nothing: 20 at length 128 for BERT."""
    mask_share: float = Field(default=0.8, ge=0, le=1)
    """The share of predicted tokens replaced by [MASK]."""
    random_share: float = Field(default=0.1, ge=0, le=1)
    """The share replaced by a random piece; the rest stay as they are."""
    random_from: str = "vocabulary"
    """Where random pieces come from: vocabulary (every id), pieces (all but special ones) or corpus (as frequent as in the text)."""

    @model_validator(mode="before")
    @classmethod
    def _follow_recipe(cls, values: Any) -> Any:
        """Fill what is not set from the recipe; what is wrong is told by its own field."""
        if not isinstance(values, dict):
            return values
        given = {name: value for name, value in values.items() if value is not None}
        name = given.get("recipe", "bert")
        reference = RECIPES.get(name) if isinstance(name, str) else None
        filled = {**(load(reference)().values() if reference else {}), **given}
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
        masks, highest = self.masking != "none", RULES[self.masking].highest_rate
        fair = default_cap(self.budget, self.mask_rate, self.length)
        wanted = round(self.mask_rate * self.length)
        if masks and self.max_predictions < wanted:
            found.append(
                f"max_predictions ({self.max_predictions}) cuts mask_rate: rows of {self.length} tokens have"
                f" {self.max_predictions / self.length:.1%} masked, not {self.mask_rate:.1%}; leave it out, or set it to {fair}"
            )
        if self.mask_rate > highest:
            found.append(
                f"mask_rate ({self.mask_rate:g}) is more than masking {self.masking} can choose in every row;"
                f" use {highest:g} or less"
            )
        if not masks and self.copies > 1:
            found.append(f"copies ({self.copies}) are all alike and empty where masking is none; use 1")
        return found

    def pair_config(self) -> PairConfig:
        """What the pairing is told."""
        from pipeline.dataset.pairs.segments import PairConfig

        return PairConfig(**{name: getattr(self, name) for name in PairConfig.model_fields})

    def mask_config(self) -> MaskConfig:
        """What masking is told."""
        from pipeline.dataset.masking.config import MaskConfig

        named = {"rule": "masking", "rate": "mask_rate"}
        return MaskConfig(**{name: getattr(self, named.get(name, name)) for name in MaskConfig.model_fields})


class DatasetConfig(ExampleConfig):
    """Examples, and how they are stored."""

    shards: int = Field(default=4, ge=1, le=99_999)
    """Files of the training split."""
    id_type: Literal["auto", "uint16", "uint32"] = "auto"
    """The type of token ids; auto takes uint16 where the vocabulary allows it."""
    length_bins: int | tuple[int, ...] = 1
    """Bins of rows of similar length, so that batches pad less: how many of equal width, or the most tokens of each. 1: none."""
    compression: Literal["none", "zstd", "lz4"] = "none"
    """Compression of the shards: zstd or lz4 take less disk, and are unpacked as they are read."""

    @field_validator("length_bins")
    @classmethod
    def _bins_fit(cls, bins: int | tuple[int, ...], info: Any) -> int | tuple[int, ...]:
        length = info.data.get("length", 1 << 16)
        if isinstance(bins, int):
            if not 1 <= bins <= MOST_BINS:
                raise ValueError(f"use 1 to {MOST_BINS} bins")
        elif not bins or len(bins) > MOST_BINS or list(bins) != sorted(set(bins)) or bins[0] < 1 or bins[-1] > length:
            raise ValueError(f"borders rise from 1 to length ({length}), {MOST_BINS} at most")
        return bins
