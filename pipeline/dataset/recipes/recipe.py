"""What a recipe settles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Values of the dataset's config, where they are explained and can be set otherwise.

    The most predictions of a row are no part of it: they follow from `budget`, the rate and the length
    (`pipeline.dataset.masking.table.default_cap`).

    Attributes:
        options: values of the options that its pairing and its masking rule declare, where the defaults are not the paper's.
    """

    pairing: str
    masking: str
    mask_rate: float = 0.15
    budget: str = "bert"
    mask_share: float = 0.8
    random_share: float = 0.1
    random_from: str = "vocabulary"
    short_seq_prob: float = 0.1
    copies: int = 10
    options: Mapping[str, Any] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """The config's values, by the names of its fields."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "options"}
        return {**own, **self.options}
