"""The left-to-right model's size: BERT-base's (Devlin et al., 2019, Table 5, "LTR & No NSP")."""

from __future__ import annotations

from model.families.config import ModelConfig
from model.families.ltr.config import LtrConfig

PRESETS: dict[str, ModelConfig] = {
    "ltr-tiny": LtrConfig.of_size(2, 128),
    "ltr-base": LtrConfig.of_size(12, 768),
}
