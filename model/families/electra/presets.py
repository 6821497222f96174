"""ELECTRA's sizes (Clark et al., 2020, Table 6); counts are of the discriminator, without its head."""

from __future__ import annotations

from model.families.config import ModelConfig
from model.families.electra.config import ElectraConfig

PRESETS: dict[str, ModelConfig] = {
    "electra-tiny": ElectraConfig.of_size(2, 128, embedding_size=128, generator_size=0.5),
    "electra-small": ElectraConfig.of_size(12, 256, embedding_size=128, generator_size=0.25),  # 14M (Table 1 too)
    "electra-base": ElectraConfig.of_size(12, 768, embedding_size=768, generator_size=1 / 3),  # 110M
    "electra-large": ElectraConfig.of_size(24, 1024, embedding_size=1024, generator_size=0.25),  # 335M
}
