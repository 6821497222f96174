"""Megatron-LM's BERT (Shoeybi et al., 2019, section 5.3, Figure 7): BERT with pre-norm blocks.

The residual path is not normalized, so gradients reach all layers equally from the first step.
Large models that diverge with post-norm train, and small ones tolerate a higher learning rate.
"""

from __future__ import annotations

from cloze.model.families.bert import model as bert
from cloze.model.families.bert.model import new_pooler
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import PretrainingModel

__all__ = ["new_model", "new_pooler"]


def new_model(config: ModelConfig) -> PretrainingModel:
    """Build the model, initialized from torch's current random state."""
    return bert.new_model(config, pre_norm=True)
