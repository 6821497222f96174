"""Longformer's sizes (Beltagy et al., 2020, section 5): RoBERTa's made longer, with 4,096 positions."""

from __future__ import annotations

from model.families.config import ModelConfig
from model.families.longformer.config import LongformerConfig

PRESETS: dict[str, ModelConfig] = {
    "longformer-tiny": LongformerConfig.of_size(2, 128, attention_window=64),
    "longformer-base": LongformerConfig.of_size(12, 768),  # windows of 512, 148M parameters
    "longformer-large": LongformerConfig.of_size(24, 1024),  # windows of 512, 435M parameters
}
