"""ModernBERT's sizes (Warner et al., 2024, Table 4); counts are with its 50,368 pieces."""

from __future__ import annotations

from model.families.config import ModelConfig
from model.families.modern.config import ModernConfig

PRESETS: dict[str, ModelConfig] = {
    # one global and one local layer, and the feed-forward block half as wide again, as modern-base has it
    "modern-tiny": ModernConfig.of_size(2, 128, intermediate_size=192),
    "modern-base": ModernConfig(),  # 22 layers of 768, feed-forward 1,152: 149M parameters
    "modern-large": ModernConfig.of_size(28, 1024, intermediate_size=2624),  # 395M
}
