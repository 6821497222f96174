"""RoBERTa (Liu et al., 2019): BERT without pairs, segments or a pooler; positions are counted from the padding id.

fairseq numbers positions from padding_idx + 1 (fairseq, utils.py, `make_positions`), so that many rows of the position
table are never read. They are kept: a checkpoint goes to transformers and comes back as it was.
"""

from __future__ import annotations

from model.families.bert import model as bert
from model.families.bert.model import new_pooler
from model.families.config import ModelConfig
from model.families.pretraining import PretrainingModel
from model.layers.heads import initialize

__all__ = ["new_model", "new_pooler"]


def new_model(config: ModelConfig) -> PretrainingModel:
    """The model of the given sizes, initialised from torch's current random state."""
    encoder = bert.encoder(config, position_offset=config.pad_token_id + 1)
    model = PretrainingModel(encoder, bert.masked_lm(config))
    initialize(model, config.initializer_range)
    return model
