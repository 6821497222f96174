"""DeBERTa's sizes. Version 3 (He et al., 2023, section 4 and Table 5; microsoft/DeBERTa, experiments/language_model/rtd_*.json and
README.md), version 2 (deberta_*.json there), both without the vocabulary's 128,100 embeddings in the counts.
"""

from __future__ import annotations

from typing import Any

from model.families.config import ModelConfig
from model.families.deberta.config import DebertaConfig


def _v3(layers: int, width: int, **changes: Any) -> ModelConfig:
    return DebertaConfig.of_size(layers, width, pretraining="rtd", enhanced_mask_decoder=True, **changes)


def _v2(layers: int, width: int, **changes: Any) -> ModelConfig:
    return DebertaConfig.of_size(layers, width, enhanced_mask_decoder=True, **changes)


PRESETS: dict[str, ModelConfig] = {
    "deberta-tiny": _v2(2, 128, position_buckets=64, conv_kernel_size=3, conv_act="gelu"),
    "deberta-base": _v2(12, 768),  # version 2's attention and vocabulary at BERT-base's size: 86M
    "deberta-v2-xlarge": _v2(24, 1536, conv_kernel_size=3, conv_act="gelu"),  # 688M; the authors say 710M
    "deberta-v2-xxlarge": _v2(48, 1536, conv_kernel_size=3, conv_act="gelu"),  # 1,368M; the authors say 1,320M
    "deberta-v3-tiny": _v3(2, 128, position_buckets=64),
    "deberta-v3-xsmall": _v3(12, 384),  # 22M
    "deberta-v3-small": _v3(6, 768),  # 44M
    "deberta-v3-base": _v3(12, 768),  # 86M
    "deberta-v3-large": _v3(24, 1024),  # 304M
}
