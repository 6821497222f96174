"""Megatron-LM's BERT (Shoeybi et al., 2019, section 5.3 and Figure 7): BERT with the norms before the blocks.

The residual path is never normalised, so gradients reach every layer alike from the first step: large models train that the
original order of norms makes diverge, and small ones bear a higher learning rate.
"""

from __future__ import annotations

from model.families.bert import model as bert
from model.families.bert.model import new_pooler
from model.families.config import ModelConfig
from model.families.pretraining import PretrainingModel

__all__ = ["new_model", "new_pooler"]


def new_model(config: ModelConfig) -> PretrainingModel:
    """The model of the given sizes, initialised from torch's current random state."""
    return bert.new_model(config, pre_norm=True)
