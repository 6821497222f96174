"""GPT-2's sizes (Radford et al., 2019, Table 2); counts are with its 50,257 pieces."""

from __future__ import annotations

from model.families.config import ModelConfig
from model.families.gpt2.config import Gpt2Config

PRESETS: dict[str, ModelConfig] = {
    "gpt2-tiny": Gpt2Config.of_size(2, 128),
    "gpt2": Gpt2Config.of_size(12, 768),  # 124M parameters
    "gpt2-medium": Gpt2Config.of_size(24, 1024),  # 355M
    "gpt2-large": Gpt2Config.of_size(36, 1280),  # 774M
    "gpt2-xl": Gpt2Config.of_size(48, 1600),  # 1,558M
}
