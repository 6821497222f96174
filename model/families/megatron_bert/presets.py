"""Megatron-LM's sizes of BERT (Shoeybi et al., 2019, section 5.3 and Table 4)."""

from __future__ import annotations

from model.families.config import ModelConfig
from model.families.megatron_bert.config import MegatronBertConfig

PRESETS: dict[str, ModelConfig] = {
    "megatron-bert-tiny": MegatronBertConfig.of_size(2, 128),
    "megatron-bert-336m": MegatronBertConfig.of_size(24, 1024),  # as large as BERT-large
    "megatron-bert-1.3b": MegatronBertConfig.of_size(24, 2048),
    "megatron-bert-3.9b": MegatronBertConfig.of_size(48, 2560),
}
