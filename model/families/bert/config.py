"""The config of BERT. No torch."""

from __future__ import annotations

from typing import Literal

from cloze.core.config import UnionTag
from cloze.model.families.config import ModelConfig


class BertConfig(ModelConfig):
    """BERT (Devlin et al., 2019); its values are the defaults of `ModelConfig`."""

    family: UnionTag[Literal["bert"]] = "bert"


CONFIG = BertConfig

# BERT's sizes (Devlin et al., "BERT", 2019, section 3, Table 6), and the small ones of Turc et al.,
# "Well-Read Students Learn Better", 2019, Table 1.
PRESETS: dict[str, ModelConfig] = {
    "bert-tiny": BertConfig.of_size(2, 128),  # 4.4M parameters (Turc et al.)
    "bert-mini": BertConfig.of_size(4, 256),  # 11.3M (Turc et al.)
    "bert-small": BertConfig.of_size(4, 512),  # 29.1M (Turc et al.)
    "bert-medium": BertConfig.of_size(8, 512),  # 41.7M (Turc et al.)
    "bert-base": BertConfig.of_size(12, 768),  # 110M: 109.5M in encoder and pooler
    # 340M in the paper, 335.1M counted in encoder and pooler
    "bert-large": BertConfig.of_size(24, 1024),
    # Ablation of Table 6 with the paper's held-out perplexity; row 4 is bert-base, row 6
    # bert-large.
    "bert-l3": BertConfig.of_size(3, 768),  # row 1: 5.84
    # row 2: 5.24; attention heads of width 256
    "bert-l6-a3": BertConfig.of_size(6, 768, num_attention_heads=3),
    "bert-l6": BertConfig.of_size(6, 768),  # row 3: 4.68
    "bert-l12-wide": BertConfig.of_size(12, 1024),  # row 5: 3.54
}
