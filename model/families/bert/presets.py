"""BERT's sizes: Devlin et al., "BERT", 2019, section 3 and Table 6; the small ones of Turc et al., "Well-Read Students Learn
Better", 2019, Table 1.
"""

from __future__ import annotations

from model.families.bert.config import BertConfig
from model.families.config import ModelConfig

PRESETS: dict[str, ModelConfig] = {
    "bert-tiny": BertConfig.of_size(2, 128),  # 4.4M parameters (Turc et al.)
    "bert-mini": BertConfig.of_size(4, 256),  # 11.3M (Turc et al.)
    "bert-small": BertConfig.of_size(4, 512),  # 29.1M (Turc et al.)
    "bert-medium": BertConfig.of_size(8, 512),  # 41.7M (Turc et al.)
    "bert-base": BertConfig.of_size(12, 768),  # 110M: 109.5M in encoder and pooler
    "bert-large": BertConfig.of_size(24, 1024),  # 340M in the paper's rounding, 335.1M counted in encoder and pooler
    # the ablation of Table 6, with the paper's held-out perplexity; its row 4 is bert-base, row 6 bert-large
    "bert-l3": BertConfig.of_size(3, 768),  # row 1: 5.84
    "bert-l6-a3": BertConfig.of_size(6, 768, num_attention_heads=3),  # row 2: 5.24; heads of width 256
    "bert-l6": BertConfig.of_size(6, 768),  # row 3: 4.68
    "bert-l12-wide": BertConfig.of_size(12, 1024),  # row 5: 3.54
}
