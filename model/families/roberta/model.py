"""RoBERTa (Liu et al., 2019): BERT without pairs, segments and pooler in pretraining.

Positions start at padding_idx + 1 (fairseq, utils.py, `make_positions`), so the first rows of the
position table are unused. They are kept so that export and import leave a checkpoint unchanged.
"""

from __future__ import annotations

from cloze.model.families.bert import model as bert
from cloze.model.families.bert.model import new_pooler
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import PretrainingModel
from cloze.model.layers.heads import initialize

__all__ = ["new_model", "new_pooler"]


def new_model(config: ModelConfig) -> PretrainingModel:
    """Build the model, initialized from torch's current random state."""
    encoder = bert.encoder(config, position_offset=config.pad_token_id + 1)
    model = PretrainingModel(encoder, bert.masked_lm(config))
    initialize(model, config.initializer_range)
    return model
