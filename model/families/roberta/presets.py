"""RoBERTa's sizes (Liu et al., 2019, section 5): BERT's, and 50K byte-level BPE units; layer_norm_eps is fairseq's."""

from __future__ import annotations

from model.families.config import ModelConfig
from model.families.roberta.config import RobertaConfig

PRESETS: dict[str, ModelConfig] = {
    "roberta-tiny": RobertaConfig.of_size(2, 128, layer_norm_eps=1e-5),
    "roberta-base": RobertaConfig.of_size(12, 768, layer_norm_eps=1e-5),  # 125M parameters: 124.7M with the LM head
    "roberta-large": RobertaConfig.of_size(24, 1024, layer_norm_eps=1e-5),  # 355M: 355.4M with the LM head
}
