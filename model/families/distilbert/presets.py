"""DistilBERT's size (Sanh et al., 2019, Table 3): half of BERT-base's layers."""

from __future__ import annotations

from model.families.config import ModelConfig
from model.families.distilbert.config import DistilBertConfig

PRESETS: dict[str, ModelConfig] = {
    "distilbert-tiny": DistilBertConfig.of_size(2, 128),
    "distilbert-base": DistilBertConfig.of_size(6, 768),  # 66M parameters: 66.4M in the encoder, 67.0M with the LM head
}
