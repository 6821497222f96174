"""Family: ModernBERT whose values also read the embeddings.

In each layer a learned share s of the first states x0, the normalized embeddings, is added to the
values, so attention mixes W x + s x0. The table is that of the words, so s is all that is new. The
idea is modded-nanogpt's value embeddings (Jordan et al., 2024), which have tables of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from cloze.core.config import UnionTag
from cloze.model.families import modern
from cloze.model.families.modern import ModernConfig

if TYPE_CHECKING:
    from cloze.model.families.config import ModelConfig
    from cloze.model.families.pretraining import PretrainingModel


class ModernValuesConfig(ModernConfig):
    """ModernBERT with values that read the embeddings; no checkpoint of another program has it."""

    supports_pruned_heads: ClassVar[bool] = False  # values and embeddings have one width

    family: UnionTag[Literal["modern-values"]] = "modern-values"  # type: ignore[assignment]


CONFIG = ModernValuesConfig

PRESETS: dict[str, ModelConfig] = {
    "modern-values-tiny": ModernValuesConfig.of_size(2, 128, intermediate_size=192),
}

build_pooler = modern.build_pooler


def build_model(config: ModernValuesConfig) -> PretrainingModel:
    from cloze.labs.records.value_layers import ValueAttention, ValueEncoder

    return modern.build_model(config, ValueEncoder, ValueAttention)
