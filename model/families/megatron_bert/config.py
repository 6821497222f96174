"""The config of Megatron-LM's BERT. No torch."""

from __future__ import annotations

from typing import Literal

from cloze.core.config import UnionTag
from cloze.model.families.config import ModelConfig


class MegatronBertConfig(ModelConfig):
    """Megatron-LM's BERT (Shoeybi et al., 2019)."""

    family: UnionTag[Literal["megatron-bert"]] = "megatron-bert"


CONFIG = MegatronBertConfig

# Sizes of Megatron-LM's BERT (Shoeybi et al., 2019, section 5.3, Table 4).
PRESETS: dict[str, ModelConfig] = {
    "megatron-bert-tiny": MegatronBertConfig.of_size(2, 128),
    "megatron-bert-336m": MegatronBertConfig.of_size(24, 1024),  # as large as BERT-large
    "megatron-bert-1.3b": MegatronBertConfig.of_size(24, 2048),
    "megatron-bert-3.9b": MegatronBertConfig.of_size(48, 2560),
}
