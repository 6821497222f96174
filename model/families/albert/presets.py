"""ALBERT's sizes (Lan et al., 2020, Table 1), all with embeddings of 128; counts are of encoder and pooler."""

from __future__ import annotations

from model.families.albert.config import AlbertConfig
from model.families.config import ModelConfig

PRESETS: dict[str, ModelConfig] = {
    "albert-tiny": AlbertConfig.of_size(2, 128),
    "albert-base": AlbertConfig.of_size(12, 768),  # 12M parameters in the table, 11.7M counted
    "albert-large": AlbertConfig.of_size(24, 1024),  # 18M, 17.7M counted
    # 60M, 58.7M counted; 16 heads of width 128 (google-research/albert, albert_config.json)
    "albert-xlarge": AlbertConfig.of_size(24, 2048, num_attention_heads=16),
    # 235M, 222.6M counted; the released model has 222.6M too, and the paper does not say what else it counts
    "albert-xxlarge": AlbertConfig.of_size(12, 4096),
}
